// A decoder and a step of it, as model.py fills them: Llama, and what Qwen and Gemma have beside it. A null
// pointer stands for a part that the family lacks.
#pragma once
#include "attention_tile.h"
#include "formats.h"

struct Layer {
    const float* input_norm;  // [hidden], padded with 0 as all rows are
    const float* mlp_norm;
    const float* post_attention_norm;  // [hidden], or null: of what attention gives, before it is added
    const float* post_mlp_norm;        // the same of the feed-forward
    const float* q_norm;               // [head_dim], or null: of each head
    const float* k_norm;
    const float* cos;  // [max_position][head_dim / 2]
    const float* sin;
    Linear qkv, output, gate_up, down;  // gate and up interleaved (pack.h)
    int32_t window;                     // see AttentionPlan::run; 0: none
};

struct Model {
    int32_t num_layers, hidden, vocab, max_position;
    int32_t is_gelu;  // the gate's activation; else SiLU
    float embedding_scale;
    float logits_cap;  // logits become logits_cap * tanh(logit / logits_cap); 0: as they are
    float eps;
    Heads heads;
    const Layer* layers;
    const float* norm;
    Linear embedding;  // read by the row; it may be the head
    Linear head;
};

struct Step {
    int32_t num_tokens, num_logits, num_hidden, num_threads;
    Batch batch;
    const int64_t* token_ids;
    const int64_t* positions;
    const int64_t* slots;
    const int64_t* chosen_rows;  // [num_chosen]: those that yield logits, then those that yield hidden states
    uint8_t* const* keys;  // [num_layers]
    uint8_t* const* values;
    float* logits;  // [num_logits][head.outputs]
    float* hidden;  // [num_hidden][hidden width]: after the final norm
    char* workspace;

    int num_chosen() const { return num_logits + num_hidden; }
};
