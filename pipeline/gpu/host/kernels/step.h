// All layers of a Llama-like decoder over one packed batch.
#pragma once
#include "attention_plan.h"
#include "kv_write.h"
#include "linear.h"
#include "pack.h"
#include "pointwise.h"

struct Layer {
    const float* input_norm;  // [hidden], padded with 0 as all rows are
    const float* mlp_norm;
    Linear qkv, output, gate_up, down;  // gate and up interleaved (pack.h)
    int32_t window;                     // see AttentionPlan::run; 0: none
};

struct Model {
    int32_t num_layers, hidden, vocab, max_position;
    float eps;
    Heads heads;
    const Layer* layers;
    const float* norm;
    Linear embedding;  // read by the row; it may be the head
    Linear head;
    const float* cos;  // [max_position][head_dim / 2]
    const float* sin;
};

struct Step {
    int32_t num_tokens, num_logits, num_threads;
    Batch batch;
    const int64_t* token_ids;
    const int64_t* positions;
    const int64_t* slots;
    const int64_t* logits_rows;
    uint8_t* const* keys;  // [num_layers]
    uint8_t* const* values;
    float* logits;  // [num_logits][head.outputs]
    char* workspace;
};

// Cuts the workspace into aligned arrays; with a null start it only counts.
class Carver {
   public:
    explicit Carver(char* start) : start_(start) {}

    template <class T>
    T* take(int64_t count) {
        char* at = start_ ? start_ + used_ : nullptr;
        used_ += (count * int64_t(sizeof(T)) + 63) / 64 * 64;
        return reinterpret_cast<T*>(at);
    }

    int64_t used() const { return used_; }

   private:
    char* start_;
    int64_t used_ = 0;
};

struct Workspace {
    float* residual;   // [T][hidden width]
    float* qkv;        // [T][qkv outputs]
    bf16* q;           // [T][H][D]
    float* attended;   // [T][output width]
    float* inner;      // [T][down width]
    float* normed;     // [threads][hidden width]
    Rows rows;

    Workspace(const Model& model, int num_tokens, int num_threads, Carver& carver) {
        const Layer& layer = model.layers[0];
        const int64_t tokens = num_tokens, width = layer.qkv.width;
        residual = carver.take<float>(tokens * width);
        qkv = carver.take<float>(tokens * layer.qkv.outputs);
        q = carver.take<bf16>(tokens * model.heads.num_heads * model.heads.kv.head_dim);
        attended = carver.take<float>(tokens * layer.output.width);
        inner = carver.take<float>(tokens * layer.down.width);
        normed = carver.take<float>(int64_t(num_threads) * width);
        const int64_t most = tokens * std::max({layer.qkv.width, layer.output.width, layer.down.width});
        rows.wide = carver.take<bf16>(most);
        rows.bytes = reinterpret_cast<int8_t*>(rows.wide);  // a linear's rows are one or the other
        rows.scales = carver.take<float>(most / GROUP);
        rows.totals = carver.take<float>(most / GROUP);
        rows.sums = carver.take<int32_t>(most / LANES);
    }
};

// One thread's way through the step; all threads of the team go it together.
class Pass {
   public:
    Pass(const Model& model, const Step& step, AttentionPlan& plan, Workspace work, Team& team)
        : model_(model), step_(step), plan_(plan), work_(work), team_(team),
          heads_(model.heads), width_(model.layers[0].qkv.width) {}

    void run() {
        team_.each(step_.num_tokens, [&](int t) { embed(t); });
        for (int i = 0; i < model_.num_layers; ++i) {
            attend(model_.layers[i], step_.keys[i], step_.values[i]);
            feed_forward(model_.layers[i]);
        }
        predict();
    }

   private:
    void embed(int t) {
        float* to = work_.residual + int64_t(t) * width_;
        const int64_t id = step_.token_ids[t];
        unpack_row(model_.embedding, int(id), to);
    }

    void attend(const Layer& layer, uint8_t* keys, uint8_t* values) {
        norm_rows(layer.input_norm, layer.qkv);
        run_linear(team_, layer.qkv, work_.rows, step_.num_tokens, Store{work_.qkv, layer.qkv.outputs});
        team_.each(step_.num_tokens, [&](int t) { place_heads(t, layer.qkv.outputs, keys, values); });
        plan_.run(team_, {work_.q, keys, values, work_.attended, layer.output.width}, layer.window);
        const int used = heads_.num_heads * heads_.kv.head_dim;
        work_.rows.serve(layer.output);
        team_.each(step_.num_tokens, [&](int t) {
            float* row = work_.attended + int64_t(t) * layer.output.width;
            std::fill(row + used, row + layer.output.width, 0.f);
            work_.rows.set(t, row);
        });
        run_linear(team_, layer.output, work_.rows, step_.num_tokens, Accumulate{work_.residual, width_});
    }

    void feed_forward(const Layer& layer) {
        const int inner = layer.down.width;
        norm_rows(layer.mlp_norm, layer.gate_up);
        run_linear(team_, layer.gate_up, work_.rows, step_.num_tokens, SwiGlu{work_.inner, inner});
        work_.rows.serve(layer.down);
        team_.each(step_.num_tokens, [&](int t) { work_.rows.set(t, work_.inner + int64_t(t) * inner); });
        run_linear(team_, layer.down, work_.rows, step_.num_tokens, Accumulate{work_.residual, width_});
    }

    void predict() {
        work_.rows.serve(model_.head);
        team_.each(step_.num_logits, [&](int r) { norm_row(int(step_.logits_rows[r]), r, model_.norm); });
        run_linear(team_, model_.head, work_.rows, step_.num_logits, Store{step_.logits, model_.head.outputs});
    }

    void norm_rows(const float* weight, const Linear& next) {
        work_.rows.serve(next);
        team_.each(step_.num_tokens, [&](int t) { norm_row(t, t, weight); });
    }

    void norm_row(int from, int to, const float* weight) {
        float* normed = work_.normed + int64_t(omp_get_thread_num()) * width_;
        rms_norm(work_.residual + int64_t(from) * width_, weight, model_.hidden, width_, model_.eps, normed);
        work_.rows.set(to, normed);
    }

    // One token's queries, keys and values, rotated, to where attention reads them.
    void place_heads(int t, int64_t stride, uint8_t* keys, uint8_t* values) {
        const int dim = heads_.kv.head_dim, num_kv = heads_.kv.num_kv_heads, num = heads_.num_heads;
        float* q = work_.qkv + t * stride;
        float* k = q + num * dim;
        const int64_t angle = step_.positions[t] * (dim / 2);
        rope(q, num + num_kv, dim, model_.cos + angle, model_.sin + angle);
        bf16* to = work_.q + int64_t(t) * num * dim;
        for (int i = 0; i < num * dim; i += LANES) store_bf16(to + i, load(q + i));
        write_kv(k, k + num_kv * dim, heads_.kv, step_.slots[t], keys, values);
    }

    const Model& model_;
    const Step& step_;
    AttentionPlan& plan_;
    Workspace work_;  // each thread's own: the rows change from linear to linear
    Team& team_;
    const Heads heads_;
    const int width_;
};

enum Fault { NONE = 0, BAD_TOKEN = 1, BAD_POSITION = 2 };

inline Fault check(const Model& model, const Step& step) {
    for (int t = 0; t < step.num_tokens; ++t) {
        if (step.token_ids[t] < 0 || step.token_ids[t] >= model.vocab) return BAD_TOKEN;
        if (step.positions[t] < 0 || step.positions[t] >= model.max_position) return BAD_POSITION;
    }
    return NONE;
}

inline Fault run_step(const Model& model, const Step& step) {
    if (const Fault fault = check(model, step)) return fault;
    Carver carver(step.workspace);
    const Workspace work(model, step.num_tokens, step.num_threads, carver);
    AttentionPlan plan(step.batch, model.heads, step.num_threads);
    Team::run(step.num_threads, [&](Team& team) { Pass(model, step, plan, work, team).run(); });
    return NONE;
}
