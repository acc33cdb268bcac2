// The writing of keys and values into the cache, in the order of kv.h.
#pragma once
#include "kv.h"

// One token's keys and values [num_kv_heads][head_dim] into its slot.
inline void write_kv(const float* k, const float* v, const KvShape& shape, int64_t slot, void* k_cache, void* v_cache) {
    bf16* keys = static_cast<bf16*>(k_cache);
    bf16* values = static_cast<bf16*>(v_cache);
    for (int h = 0; h < shape.num_kv_heads; ++h, k += shape.head_dim, v += shape.head_dim) {
        const int64_t base = shape.strip(slot / shape.block_size, h, int(slot % shape.block_size) / STRIP);
        const int t = int(slot % STRIP);
        for (int d = 0; d < shape.head_dim; ++d) {
            keys[base + (d / 2 * STRIP + t) * 2 + d % 2] = to_bf16(k[d]);
            values[base + (t / 2 * shape.head_dim + d) * 2 + t % 2] = to_bf16(v[d]);
        }
    }
}
