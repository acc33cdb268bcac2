// The C ABI that library.py binds: the step, the packing of weights, and each kernel alone for its tests.
#include "sampling.h"
#include "step.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const char* stageline_isa() { return ISA; }

EXPORT int64_t stageline_panel_bytes(Format format, int32_t width) { return panel_bytes(format, width); }

// rows [count][inputs] fp32 -> BF16 or INT8 panels; the first is row `first_row` of its weight.
EXPORT void stageline_pack(const Linear* to, const float* rows, int32_t count, int32_t inputs, int32_t first_row,
                           Placement place, int32_t num_threads) {
#pragma omp parallel for num_threads(num_threads)
    for (int32_t i = 0; i < count; ++i) {
        const float* row = rows + int64_t(i) * inputs;
        const int32_t output = place.output(first_row + i);
        const Panel& panel = to->panels[output / PANEL];
        if (panel.format == INT8) pack_int8(row, inputs, to->width, output % PANEL, panel.weight);
        else pack_bf16(row, inputs, output % PANEL, panel.weight);
    }
}

// rows [count] of a GGUF's blocks -> panels of the kind's format.
EXPORT void stageline_pack_blocks(const Linear* to, GgufKind kind, const uint8_t* rows, int32_t count, int32_t inputs,
                                  int32_t first_row, Placement place, int32_t num_threads) {
    // a panel's outputs share bytes: it is one thread's
    const int32_t runs = (count + LANES - 1) / LANES;
#pragma omp parallel for num_threads(num_threads) schedule(static, PANEL / LANES)
    for (int32_t run = 0; run < runs; ++run) {
        for (int32_t i = run * LANES; i < std::min((run + 1) * LANES, count); ++i) {
            const int32_t output = place.output(first_row + i);
            pack_blocks(kind, rows + i * row_bytes(kind, inputs), inputs, output % PANEL, to->panels[output / PANEL].weight);
        }
    }
}

// The weights of output `row`, [width] fp32.
EXPORT void stageline_unpack(const Linear* from, int32_t row, float* to) { unpack_row(*from, row, to); }

EXPORT int64_t stageline_workspace_bytes(const Model* model, int32_t num_tokens, int32_t num_threads) {
    Carver carver(nullptr);
    Workspace(*model, num_tokens, num_threads, carver);
    return carver.used();
}

// 0, or a Fault.
EXPORT int32_t stageline_step(const Model* model, const Step* step) { return run_step(*model, *step); }

EXPORT void stageline_sample(const SamplingRows* rows, int64_t* token_ids, int32_t num_threads) {
    sample_rows(*rows, token_ids, num_threads);
}

// y [T][outputs] = x W^T + b; x [T][width] fp32.
EXPORT void stageline_linear(const Linear* linear, const Rows* rows, const float* x, int32_t num_rows, float* y,
                             int32_t num_threads) {
    Team::run(num_threads, [&](Team& team) {
        team.each(num_rows, [&](int t) { rows->set(t, x + int64_t(t) * rows->width); });
        run_linear(team, *linear, *rows, num_rows, Store{y, linear->outputs});
    });
}

// y [T][outputs / 2] = silu(gate) * up.
EXPORT void stageline_swiglu(const Linear* linear, const Rows* rows, const float* x, int32_t num_rows, float* y,
                             int32_t num_threads) {
    Team::run(num_threads, [&](Team& team) {
        team.each(num_rows, [&](int t) { rows->set(t, x + int64_t(t) * rows->width); });
        run_linear(team, *linear, *rows, num_rows, SwiGlu{y, linear->outputs / 2});
    });
}

// y [T][outputs / 2] = gelu(gate) * up.
EXPORT void stageline_geglu(const Linear* linear, const Rows* rows, const float* x, int32_t num_rows, float* y,
                            int32_t num_threads) {
    Team::run(num_threads, [&](Team& team) {
        team.each(num_rows, [&](int t) { rows->set(t, x + int64_t(t) * rows->width); });
        run_linear(team, *linear, *rows, num_rows, GeGlu{y, linear->outputs / 2});
    });
}

// q [T][H][D] bf16 -> out [T][H * D] fp32.
EXPORT void stageline_attention(const Heads* heads, const Batch* batch, const bf16* q, const uint8_t* keys,
                                const uint8_t* values, float* out, int32_t window, int32_t num_threads) {
    AttentionPlan plan(*batch, *heads, num_threads);
    const int64_t stride = int64_t(heads->num_heads) * heads->kv.head_dim;
    Team::run(num_threads, [&](Team& team) { plan.run(team, {q, keys, values, out, stride}, window); });
}

EXPORT void stageline_rms_norm(const float* x, const float* weight, int32_t size, int32_t width, float eps, float* y) {
    rms_norm(x, weight, size, width, eps, y);
}

EXPORT void stageline_cap(float* x, int32_t width, float limit) { cap(x, width, limit); }

EXPORT void stageline_rope(float* x, int32_t num_heads, int32_t head_dim, const float* cos, const float* sin) {
    rope(x, num_heads, head_dim, cos, sin);
}

// k, v [T][Hkv][D] fp32 to slots [T].
EXPORT void stageline_write_kv(const KvShape* shape, const float* k, const float* v, const int64_t* slots,
                               int32_t num_tokens, uint8_t* keys, uint8_t* values) {
    const int64_t size = int64_t(shape->num_kv_heads) * shape->head_dim;
    for (int32_t t = 0; t < num_tokens; ++t) write_kv(k + t * size, v + t * size, *shape, slots[t], keys, values);
}

// sizeof of every struct that library.py declares too, in its order.
EXPORT void stageline_struct_sizes(int32_t* sizes) {
    const size_t all[] = {sizeof(KvShape), sizeof(Heads), sizeof(Panel), sizeof(Linear), sizeof(Placement), sizeof(Rows),
                          sizeof(Layer),   sizeof(Model), sizeof(Batch),  sizeof(Step),
                          sizeof(SamplingRows)};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) sizes[i] = int32_t(all[i]);
}
