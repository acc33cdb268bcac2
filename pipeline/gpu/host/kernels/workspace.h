// Where a step keeps what its layers hand on to one another.
#pragma once
#include "model.h"
#include "rows.h"

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
    float* chosen;     // [R][hidden width], R <= T: of the chosen rows
    float* change;     // [T][hidden width], to be normed and added; null where nothing is
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
        chosen = carver.take<float>(tokens * width);
        change = layer.post_mlp_norm ? carver.take<float>(tokens * width) : nullptr;
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
