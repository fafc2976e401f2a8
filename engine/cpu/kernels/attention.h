// Attention with an online softmax (Milakov and Gimelshein, arXiv:1805.02867): keys and values of a
// head are packed into panels once; a tile of queries then visits blocks of keys and keeps its
// running maximum, sum and output.

// Where the level multiplies words (bf16.h), bf16 queries, keys, values and probabilities stay
// bf16: steps of a product over D or over keys are then pairs. Elsewhere bf16 is widened when it is
// packed. Scores, maxima, sums and outputs are f32 until the end.

enum { KEY_BLOCK = 512 }; // keys whose scores for one tile stay in the first cache

static int words_of(const pb_attn* a) { return PB_DOT && a->dtype == PB_BF16; }

// word_at returns channels 2 i and 2 i + 1 of a row of d.
VI float word_at(const uint16_t* row, int64_t i, int64_t d) {
    float w = 0;
    memcpy(&w, row + 2 * i, 2 * i + 1 < d ? 4 : 2);
    return w;
}

#ifndef TWIN
// pack_keys writes one panel of keys; T is the type of k, W whether steps are words.
VI void pack_keys(const int T, const int W, const pb_attn* a, int64_t p) {
    const int64_t steps = W ? (a->d + 1) / 2 : a->d, cols = imin(NR, a->keys - p);
    const int64_t es = act_size(T);
    float* to = (float*)a->kp + p * steps;
    for (int64_t j = 0; j < NR; j++) {
        const char* row =
            (const char*)a->k + (a->b * a->k_b + a->h * a->k_h + (p + j) * a->k_l) * es;
        if (j >= cols) {
            for (int64_t d = 0; d < steps; d++)
                to[d * NR + j] = 0;
        } else if (W) {
            for (int64_t d = 0; d < a->d / 2; d++)
                memcpy(to + d * NR + j, row + 4 * d, 4);
            if (a->d % 2) to[(steps - 1) * NR + j] = word_at((const uint16_t*)row, steps - 1, a->d);
        } else {
            for (int64_t d = 0; d < steps; d++)
                to[d * NR + j] = act_at(T, row, d);
        }
    }
}

// pack_values writes keys a->l0 .. a->l1 of channels d .. d + n; n <= VW.
VI void pack_values(const int T, const int W, const pb_attn* a, int64_t d, int64_t n) {
    const int64_t es = act_size(T), end = imin(a->l1, a->keys), ls = a->v_l * es;
    const int64_t steps = W ? (a->keys + 1) / 2 : a->keys;
    const char* v = (const char*)a->v + (a->b * a->v_b + a->h * a->v_h) * es;
    float* to = (float*)a->vp + (d / NR * steps + (W ? a->l0 / 2 : a->l0)) * NR + d % NR;
    for (int64_t l = a->l0; l < end; l += 1 + W, to += NR) {
        vf x = load_act(T, v + l * ls, d, n);
        if (W) {
            vf y = l + 1 < end ? load_act(T, v + (l + 1) * ls, d, n) : vzero();
            x = (vf)((vu)x >> 16 | (vu)y); // widened, so the value is in the upper half
        }
        vstore(to, x);
    }
}

// attn_pack packs keys [l0, l1) of one head (l0 a multiple of NR): keys to panels [Lk/NR][D][NR],
// values to panels [D/NR][Lk][NR], or with words [Lk/NR][D/2][NR] and [D/NR][Lk/2][NR].
VI void attn_pack_as(const int T, const int W, const pb_attn* a) {
    for (int64_t p = a->l0; p < a->l1; p += NR)
        pack_keys(T, W, a, p);
    int64_t d = 0;
    for (; d + VW <= a->d; d += VW)
        pack_values(T, W, a, d, VW);
    if (d < a->d) pack_values(T, W, a, d, a->d - d);
    if (a->d % NR && a->d % NR <= VW) { // a last panel that has only its first half
        const int64_t steps = W ? (a->keys + 1) / 2 : a->keys, from = W ? a->l0 / 2 : a->l0;
        const int64_t end = imin(a->l1, a->keys), to = W ? (end + 1) / 2 : end;
        float* p = (float*)a->vp + (a->d / NR * steps) * NR + VW;
        for (int64_t l = from; l < to; l++)
            vstore(p + l * NR, vzero());
    }
}

void KERNEL(attn_pack)(const pb_attn* a) {
    if (a->dtype == PB_F32) {
        attn_pack_as(PB_F32, 0, a);
    } else if (PB_DOT) {
        attn_pack_as(PB_BF16, 1, a);
    } else {
        attn_pack_as(PB_BF16, 0, a);
    }
}
#endif

#define LOG2E 1.44269504f
#define LN2 0.693147181f

// mask_scores scales, adds the bias and hides keys behind the causal diagonal and behind the last
// valid key. s is [blocks][rows][VW]; the tile's first query is l, the first key k0, n keys are
// valid. Scores are in units of ln 2, so that the softmax needs powers of two only.
static void mask_scores(const pb_attn* a, float* s, int64_t rows, int64_t l, int64_t k0, int64_t n,
                        float scale) {
    const vf hidden = vset(-INFINITY), unit = vset(LOG2E);
    for (int64_t i = 0; i < rows; i++) {
        const float* bias =
            a->bias ? (const float*)a->bias + a->h * a->bias_h + (l + i) * a->bias_l + k0 : 0;
        const int64_t seen = a->causal ? imax(0, imin(n, l + i + 1 - k0)) : n;
        for (int64_t c = 0; c < n; c += VW) {
            float* p = s + (c / VW * rows + i) * VW;
            vf v = vload(p) * scale;
            if (bias) v = vfma(n - c >= VW ? vload(bias + c) : vload_n(bias + c, n - c), unit, v);
            if (seen < c + VW) {
                vf at = __builtin_convertvector(vlanes(), vf);
                v = vkeep_ge(at, vset((float)(seen - c)), hidden, v);
            }
            vstore(p, v);
        }
    }
}

// soften replaces scores by 2^(scale * score - maximum) and updates the running maximum m and sum
// of each row; back receives the factor that earlier results of the row shrink by. Returns whether
// any is not 1. hide (a constant) is set where some scores may be -infinity. With words (a
// constant) the results are bf16, two blocks of scores becoming one of words: [blocks/2][rows][VW].
// The sum is that of the values before rounding.
VI int soften(const int hide, const int words, float* s, int64_t rows, int64_t blocks, float scale,
              float* m, float* sum, float* back) {
    const vf by = vset(scale);
    int shrink = 0;
    for (int64_t i = 0; i < rows; i++) {
        float* p = s + i * VW;
        vf top = vset(-INFINITY);
        for (int64_t c = 0; c < blocks; c++)
            top = vmax(top, vload(p + c * rows * VW));
        const float now = fmaxf(m[i], vtop(top) * scale);
        const float base = hide && now == -INFINITY ? 0 : now; // nothing visible yet: all become 0
        vf total = vzero(), b = vset(-base);
        if (words) {
            for (int64_t c = 0; c < blocks; c += 2) {
                vf e = vexp2_short(vfma(vload(p + c * rows * VW), by, b), hide), f = vzero();
                if (c + 1 < blocks)
                    f = vexp2_short(vfma(vload(p + (c + 1) * rows * VW), by, b), hide);
                vstore_words(p + c / 2 * rows * VW, e, f);
                total = total + (e + f);
            }
        } else {
            for (int64_t c = 0; c < blocks; c++) {
                vf e = vexp2(vload(p + c * rows * VW) + b, hide);
                vstore(p + c * rows * VW, e);
                total = total + e;
            }
        }
        back[i] = m[i] == now ? 1 : m[i] == -INFINITY ? 0 : exp2f(m[i] - now);
        shrink |= back[i] != 1;
        sum[i] = sum[i] * back[i] + vsum(total);
        m[i] = now;
    }
    return shrink;
}

// queries is a block of queries that is worked on: per tile its rows, their scaled values and
// results.
typedef struct {
    int64_t tiles, dk, dv; // steps of the head size rounded up to lanes, head size to panels
    float *s, *q, *o;      // scores of one tile; [tiles][dk/VW][rows][VW]; [tiles][dv/VW][rows][VW]
    float m[MAX_TILES * MR], sum[MAX_TILES * MR];
    int words;
} queries;

static int64_t tile_start(const pb_attn* a, const queries* b, int64_t t) {
    return (a->l1 - a->l0) * t / b->tiles;
}

// load_queries copies the queries; f32 (also widened) takes the scale along, words keep their bits.
static void load_queries(const pb_attn* a, queries* b) {
    const vf unit = vset(a->scale * LOG2E);
    const int how = a->dtype == PB_F32 ? ROW_F32 : b->words ? ROW_WORDS : ROW_WIDEN;
    const char* q = (const char*)a->q;
    for (int64_t t = 0; t < b->tiles; t++) {
        const int64_t t0 = tile_start(a, b, t), rows = tile_start(a, b, t + 1) - t0;
        const int64_t at = a->b * a->q_b + (a->l0 + t0) * a->q_l + a->h * a->q_h;
        float* to = b->q + t * MR * b->dk;
        pack_rows(how, to, q + at * act_size((int)a->dtype), a->q_l, rows, a->d);
        for (int64_t i = 0; !b->words && i < rows * b->dk; i += VW)
            vstore(to + i, vload(to + i) * unit);
    }
    for (int64_t i = 0; i < b->tiles * MR; i++)
        b->m[i] = -INFINITY, b->sum[i] = 0;
    memset(b->o, 0, (size_t)(b->tiles * MR * b->dv) * 4);
}

// visit lets tile t see keys [k0, k0 + n).
VI void visit(const int words, const pb_attn* a, queries* b, int64_t t, int64_t k0, int64_t n) {
    static const int64_t no_tap = 0;
    const int kind = words ? UKR_DOT : UKR_F32;
    const int64_t t0 = tile_start(a, b, t), rows = tile_start(a, b, t + 1) - t0;
    const int64_t d_steps = words ? (a->d + 1) / 2 : a->d, n_steps = words ? (n + 1) / 2 : n;
    const int64_t panel = (words ? (a->keys + 1) / 2 : a->keys), k0_step = words ? k0 / 2 : k0;
    float back[MR];
    float *o = b->o + t * MR * b->dv, *m = b->m + t * MR, *sum = b->sum + t * MR;
    const span over_d = {1, &no_tap, rows * VW, d_steps, 0};
    const span over_keys = {1, &no_tap, rows * VW, n_steps, 0};
    for (int64_t p = 0, w; p < n; p += w * NR) {
        w = panels_of(kind, (n - p + NR - 1) / NR);
        run_ukr(rows, kind, n - p <= VW ? 0 : 1, b->q + t * MR * b->dk,
                (const float*)a->kp + (k0 + p) * d_steps, b->s + p * rows, d_steps * NR * 4,
                w > 1 ? b->s + (p + NR) * rows : 0, &over_d, 0);
    }
    const int64_t blocks = (n + VW - 1) / VW;
    const float scale = words ? a->scale * LOG2E : 1;
    int shrink;
    if (a->bias || n % VW || (a->causal && k0 + n > a->l0 + t0 + 1) || scale <= 0) {
        mask_scores(a, b->s, rows, a->l0 + t0, k0, n, scale);
        shrink = soften(1, words, b->s, rows, blocks, 1, m, sum, back);
    } else {
        shrink = soften(0, words, b->s, rows, blocks, scale, m, sum, back);
    }
    for (int64_t c = 0; shrink && c < b->dv / VW; c++) {
        for (int64_t i = 0; i < rows; i++) {
            float* p = o + (c * rows + i) * VW;
            vstore(p, vload(p) * back[i]);
        }
    }
    for (int64_t d = 0, w; d < a->d; d += w * NR) {
        w = panels_of(kind, (a->d - d + NR - 1) / NR);
        run_ukr(rows, kind, a->d - d <= VW ? 0 : 1, b->s,
                (const float*)a->vp + d * panel + k0_step * NR, o + d * rows, panel * NR * 4,
                w > 1 ? o + (d + NR) * rows : 0, &over_keys, 1);
    }
}

VI void store_results(const int T, const pb_attn* a, const queries* b) {
    for (int64_t t = 0; t < b->tiles; t++) {
        const int64_t t0 = tile_start(a, b, t), rows = tile_start(a, b, t + 1) - t0;
        for (int64_t i = 0; i < rows; i++) {
            const int64_t at = a->l0 + t0 + i;
            const float l = b->sum[t * MR + i];
            char* to = (char*)a->o + (a->b * a->o_b + at * a->o_l + a->h * a->o_h) * act_size(T);
            const vf f = vset(l == 0 ? 0 : 1 / l);
            for (int64_t d = 0; d < a->d; d += VW) {
                const vf v = vload(b->o + t * MR * b->dv + (d / VW * rows + i) * VW) * f;
                store_act(T, to, d, v, imin(VW, a->d - d));
            }
            if (a->lse) {
                float* lse = (float*)a->lse + a->b * a->lse_b + a->h * a->lse_h;
                lse[at] = l == 0 ? -INFINITY : b->m[t * MR + i] * LN2 + logf(l);
            }
        }
    }
}

// attn computes queries [l0, l1) of one head, at most MAX_TILES tiles.
static void attn(const pb_attn* a) {
    queries b;
    b.words = words_of(a);
    b.tiles = (a->l1 - a->l0 + MR - 1) / MR;
    b.dk = round_up(b.words ? (a->d + 1) / 2 : a->d, VW);
    b.dv = round_up(a->d, NR);
    b.s = (float*)a->tmp;
    b.q = b.s + KEY_BLOCK * MR;
    b.o = b.q + b.tiles * MR * b.dk;
    load_queries(a, &b);
    for (int64_t k0 = 0; k0 < a->keys; k0 += KEY_BLOCK) {
        for (int64_t t = 0; t < b.tiles; t++) {
            int64_t n = imin(a->keys - k0, KEY_BLOCK);
            if (a->causal) n = imin(n, a->l0 + tile_start(a, &b, t + 1) - k0);
            if (n <= 0) continue;
#if PB_DOT
            if (b.words) {
                visit(1, a, &b, t, k0, n);
                continue;
            }
#endif
            visit(0, a, &b, t, k0, n);
        }
    }
    tiles_off();
    if (a->dtype == PB_F32) {
        store_results(PB_F32, a, &b);
    } else {
        store_results(PB_BF16, a, &b);
    }
}
