// All layers of a decoder over one packed batch.
#pragma once
#include <optional>
#include "attention_plan.h"
#include "kv_write.h"
#include "linear.h"
#include "pack.h"
#include "pointwise.h"
#include "workspace.h"

// Attention of all rows, and of those that yield logits or hidden states: nobody asks for the last layer's output
// of the others.
struct Plans {
    AttentionPlan all;
    std::optional<AttentionPlan> chosen;  // none: all are

    explicit Plans(const Model& model, const Step& step) : all(step.batch, model.heads, step.num_threads) {
        if (step.num_chosen() == step.num_tokens || step.batch.mass) return;
        std::vector<bool> wanted(step.num_tokens);
        for (int r = 0; r < step.num_chosen(); ++r) wanted[step.chosen_rows[r]] = true;
        chosen.emplace(step.batch, model.heads, step.num_threads, &wanted);
    }

    AttentionPlan& of(bool is_last) { return is_last && chosen ? *chosen : all; }
};

// One thread's way through the step; all threads of the team go it together.
class Pass {
   public:
    Pass(const Model& model, const Step& step, Plans& plans, Workspace work, Team& team)
        : model_(model), step_(step), plans_(plans), work_(work), team_(team), heads_(model.heads),
          width_(model.layers[0].qkv.width), residual_(work.residual), num_rows_(step.num_tokens) {}

    void run() {
        team_.each(step_.num_tokens, [&](int t) { embed(t); });
        const float* post_norm = nullptr;  // of the change that is not yet added
        for (int i = 0; i < model_.num_layers; ++i) {
            const Layer& layer = model_.layers[i];
            const bool is_last = i + 1 == model_.num_layers;
            place(layer, post_norm, step_.keys[i], step_.values[i]);
            plans_.of(is_last).run(team_, {work_.q, step_.keys[i], step_.values[i], work_.attended, layer.output.width},
                                   layer.window);
            if (is_last) choose();
            attend(layer, is_last);
            feed_forward(layer);
            post_norm = layer.post_mlp_norm;
        }
        predict(post_norm);
    }

   private:
    void embed(int t) {
        float* to = work_.residual + int64_t(t) * width_;
        const int64_t id = step_.token_ids[t];
        unpack_row(model_.embedding, int(id), to);
        if (model_.embedding_scale != 1.f) scale(to, width_, model_.embedding_scale);
    }

    // Queries, and keys and values in the cache.
    void place(const Layer& layer, const float* post_norm, uint8_t* keys, uint8_t* values) {
        norm_rows(layer.input_norm, post_norm, layer.qkv);
        run_linear(team_, layer.qkv, work_.rows, step_.num_tokens, Store{work_.qkv, layer.qkv.outputs});
        team_.each(step_.num_tokens, [&](int t) { place_heads(t, layer, keys, values); });
    }

    // From here on only the chosen rows are computed.
    void choose() {
        num_rows_ = step_.num_chosen();
        residual_ = work_.chosen;
        team_.each(num_rows_, [&](int r) {
            std::copy_n(work_.residual + step_.chosen_rows[r] * width_, width_, residual_ + int64_t(r) * width_);
        });
    }

    void attend(const Layer& layer, bool is_last) {
        const int used = heads_.num_heads * heads_.kv.head_dim;
        work_.rows.serve(layer.output);
        team_.each(num_rows_, [&](int r) {
            float* row = work_.attended + (is_last ? step_.chosen_rows[r] : r) * layer.output.width;
            std::fill(row + used, row + layer.output.width, 0.f);
            work_.rows.set(r, row);
        });
        run_output(layer.output, layer.post_attention_norm);
    }

    void feed_forward(const Layer& layer) {
        const int inner = layer.down.width;
        norm_rows(layer.mlp_norm, layer.post_attention_norm, layer.gate_up);
        if (model_.is_gelu) run_linear(team_, layer.gate_up, work_.rows, num_rows_, GeGlu{work_.inner, inner});
        else run_linear(team_, layer.gate_up, work_.rows, num_rows_, SwiGlu{work_.inner, inner});
        work_.rows.serve(layer.down);
        team_.each(num_rows_, [&](int t) { work_.rows.set(t, work_.inner + int64_t(t) * inner); });
        run_output(layer.down, layer.post_mlp_norm);
    }

    void predict(const float* post_norm) {
        const int outputs = model_.head.outputs;
        num_rows_ = step_.num_logits;
        team_.each(step_.num_hidden, [&](int h) {
            norm_row(num_rows_ + h, model_.norm, post_norm, step_.hidden + int64_t(h) * width_);
        });
        norm_rows(model_.norm, post_norm, model_.head);
        run_linear(team_, model_.head, work_.rows, num_rows_, Store{step_.logits, outputs});
        if (model_.logits_cap == 0.f) return;
        team_.each(num_rows_, [&](int r) { cap(step_.logits + int64_t(r) * outputs, outputs, model_.logits_cap); });
    }

    // The last linear of a half of a layer: added at once, or later, by norm_row, if it is normed first.
    void run_output(const Linear& linear, const float* post_norm) {
        if (post_norm) run_linear(team_, linear, work_.rows, num_rows_, Store{work_.change, width_});
        else run_linear(team_, linear, work_.rows, num_rows_, Accumulate{residual_, width_});
    }

    void norm_rows(const float* weight, const float* post_norm, const Linear& next) {
        work_.rows.serve(next);
        team_.each(num_rows_, [&](int r) {
            float* normed = work_.normed + int64_t(omp_get_thread_num()) * width_;
            norm_row(r, weight, post_norm, normed);
            work_.rows.set(r, normed);
        });
    }

    void norm_row(int r, const float* weight, const float* post_norm, float* normed) {
        float* residual = residual_ + int64_t(r) * width_;
        if (post_norm) {
            rms_norm(work_.change + int64_t(r) * width_, post_norm, model_.hidden, width_, model_.eps, normed);
            add_to(residual, normed, width_);
        }
        rms_norm(residual, weight, model_.hidden, width_, model_.eps, normed);
    }

    // One token's queries, keys and values, normed and rotated, to where attention reads them.
    void place_heads(int t, const Layer& layer, uint8_t* keys, uint8_t* values) {
        const int dim = heads_.kv.head_dim, num_kv = heads_.kv.num_kv_heads, num = heads_.num_heads;
        float* q = work_.qkv + int64_t(t) * layer.qkv.outputs;
        float* k = q + num * dim;
        if (layer.q_norm) norm_heads(q, num, layer.q_norm);
        if (layer.k_norm) norm_heads(k, num_kv, layer.k_norm);
        const int64_t angle = step_.positions[t] * (dim / 2);
        rope(q, num + num_kv, dim, layer.cos + angle, layer.sin + angle);
        bf16* to = work_.q + int64_t(t) * num * dim;
        for (int i = 0; i < num * dim; i += LANES) store_bf16(to + i, load(q + i));
        write_kv(k, k + num_kv * dim, heads_.kv, step_.slots[t], keys, values);
    }

    void norm_heads(float* x, int num, const float* weight) {
        const int dim = heads_.kv.head_dim;
        for (int h = 0; h < num; ++h, x += dim) rms_norm(x, weight, dim, dim, model_.eps, x);
    }

    const Model& model_;
    const Step& step_;
    Plans& plans_;
    Workspace work_;  // each thread's own: the rows change from linear to linear
    Team& team_;
    const Heads heads_;
    const int width_;
    float* residual_;  // [num_rows_][width_]
    int num_rows_;
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
    Plans plans(model, step);
    Team::run(step.num_threads, [&](Team& team) { Pass(model, step, plans, work, team).run(); });
    return NONE;
}
