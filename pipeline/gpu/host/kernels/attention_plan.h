// Attention of a step: which thread computes what.
#pragma once
#include <vector>
#include "attention_mass.h"
#include "team.h"

// The tasks of one step, the same for all its layers.
class AttentionPlan {
   public:
    // wanted: the tokens whose result is asked for; null: all.
    AttentionPlan(const Batch& batch, const Heads& heads, int num_threads, const std::vector<bool>* wanted = nullptr)
        : heads_(heads), mass_(batch.mass), mass_stride_(batch.table_stride) {
        for (int row = 0; row < batch.num_rows; ++row) add_row(batch, row, wanted);
        std::sort(tiles_.begin(), tiles_.end(), [](const Tile& a, const Tile& b) {
            return a.sight.num_seen(a.limit) > b.sight.num_seen(b.limit);
        });
        const bool is_split = int(tiles_.size()) < 4 * num_threads;
        for (int i = 0; i < int(tiles_.size()); ++i) add_tasks(i, is_split);
        partials_.resize(num_partials_);
        if (mass_) kept_.resize(num_kept_);
    }

    // A layer with a window sees only so many of the latest entries of each context: Sight::within.
    void run(Team& team, const Operands& x, int window) {
        // threads take contiguous shares, so neighbours in size go to different threads
        const int count = int(tasks_.size()), threads = team.size(), share = (count + threads - 1) / threads;
        team.each(share * threads, [&](int i) {
            const int at = i % share * threads + i / share;
            if (at < count) run_task(tasks_[at], x, window);
        });
        if (split_.empty()) return;
        team.each(int(split_.size()), [&](int i) { run_merge(split_[i], x, window); });
    }

   private:
    struct Task { int tile, begin, end, partial, kept; };  // spans begin..end; kept: of the tile's first span

    void add_row(const Batch& batch, int row, const std::vector<bool>* wanted) {
        const int group = heads_.num_heads / heads_.kv.num_kv_heads;
        const int start = batch.query_start[row], end = batch.query_start[row + 1];
        const int width = std::min(group, TILE_QUERIES), height = TILE_QUERIES / width;
        Sight sight;
        if (batch.windows && batch.windows[row]) sight = {batch.sinks[row], batch.windows[row]};
        for (int head = 0; head < heads_.num_heads;) {
            const int kv_head = head / group, count = std::min(width, (kv_head + 1) * group - head);
            for (int token = start; token < end; token += height) {
                const int stop = std::min(token + height, end);
                if (wanted && !std::count(wanted->begin() + token, wanted->begin() + stop, true)) continue;
                tiles_.push_back({batch.block_tables + int64_t(row) * batch.table_stride, row, token,
                                  stop - token, head, count, kv_head,
                                  batch.context_lens[row] - (end - token) + 1, sight});
            }
            head += count;
        }
    }

    void add_tasks(int tile, bool is_split) {
        const int spans = tiles_[tile].num_spans(), step = is_split ? 1 : spans;
        if (step < spans) split_.push_back({tile, 0, spans, num_partials_, num_kept_});
        for (int at = 0; at < spans; at += step) {
            tasks_.push_back({tile, at, at + step, step < spans ? num_partials_++ : -1, num_kept_});
        }
        num_kept_ += spans;
    }

    void run_task(const Task& task, const Operands& x, int window) {
        const Tile& tile = tiles_[task.tile];
        StripWeights* kept = mass_ ? &kept_[task.kept] : nullptr;
        if (task.partial >= 0) {
            attend(tile, tile.sight.within(window), heads_, task.begin, task.end, x, partials_[task.partial], kept);
            return;
        }
        Partial partial;
        attend(tile, tile.sight.within(window), heads_, task.begin, task.end, x, partial, kept);
        end_tile(task, partial, x, window);
    }

    void run_merge(const Task& task, const Operands& x, int window) {
        Partial& all = partials_[task.partial];
        for (int number = 1; number < task.end; ++number) {
            merge(all, partials_[task.partial + number], tiles_[task.tile].size(), heads_.kv.head_dim);
        }
        end_tile(task, all, x, window);
    }

    void end_tile(const Task& task, const Partial& all, const Operands& x, int window) {
        const Tile& tile = tiles_[task.tile];
        finish(all, tile, heads_, x);
        if (!mass_) return;
        int64_t* mass = mass_ + int64_t(tile.row) * mass_stride_;
        add_mass(tile, tile.sight.within(window), heads_.kv, all, &kept_[task.kept], mass);
    }

    Heads heads_;
    int64_t* mass_;
    int mass_stride_;
    std::vector<Tile> tiles_;
    std::vector<Task> tasks_, split_;
    std::vector<Partial> partials_;
    std::vector<StripWeights> kept_;
    int num_partials_ = 0, num_kept_ = 0;
};
