// Attention with an online softmax (Milakov and Gimelshein, arXiv:1805.02867): keys and values of a
// head are packed into panels once; a tile of queries then visits blocks of keys and keeps its running
// maximum, sum and output.

enum { KEY_BLOCK = 16 * NR }; // keys whose scores for one tile stay in the first cache

// attn_pack packs keys [l0, l1) of one head (l0 a multiple of NR): keys to panels [Lk/NR][D][NR],
// values to panels [D/NR][Lk][NR].
static void attn_pack(const pb_attn* a) {
    const float* k = (const float*)a->k + a->b * a->k_b + a->h * a->k_h;
    const float* v = (const float*)a->v + a->b * a->v_b + a->h * a->v_h;
    for (int64_t p = a->l0; p < a->l1; p += NR) {
        float* to = (float*)a->kp + p * a->d;
        const int64_t cols = imin(NR, a->keys - p);
        for (int64_t j = 0; j < NR; j++) {
            const float* row = k + (p + j) * a->k_l;
            if (j < cols) {
                for (int64_t d = 0; d < a->d; d++) to[d * NR + j] = row[d];
            } else {
                for (int64_t d = 0; d < a->d; d++) to[d * NR + j] = 0;
            }
        }
    }
    for (int64_t d = 0; d < a->d; d += VW) {
        const int64_t n = imin(VW, a->d - d);
        float* to = (float*)a->vp + (d / NR * a->keys) * NR + d % NR;
        for (int64_t l = a->l0; l < imin(a->l1, a->keys); l++) {
            vstore(to + l * NR, n == VW ? vload(v + l * a->v_l + d) : vload_n(v + l * a->v_l + d, n));
        }
    }
    if (a->d % NR && a->d % NR <= VW) { // a last panel that has only its first half
        float* to = (float*)a->vp + (a->d / NR * a->keys) * NR + VW;
        for (int64_t l = a->l0; l < imin(a->l1, a->keys); l++) vstore(to + l * NR, vzero());
    }
}

// scores adds the bias and hides keys behind the causal diagonal and behind the last valid key.
// s is [blocks][rows][VW]; the tile's first query is l, the first key k0, n keys are valid.
static void mask_scores(const pb_attn* a, float* s, int64_t rows, int64_t l, int64_t k0, int64_t n) {
    const vf hidden = vset(-INFINITY);
    for (int64_t i = 0; i < rows; i++) {
        const float* bias =
            a->bias ? (const float*)a->bias + a->h * a->bias_h + (l + i) * a->bias_l + k0 : 0;
        const int64_t seen = a->causal ? imax(0, imin(n, l + i + 1 - k0)) : n;
        for (int64_t c = 0; c < n; c += VW) {
            float* p = s + (c / VW * rows + i) * VW;
            vf v = vload(p);
            if (bias) v = v + (n - c >= VW ? vload(bias + c) : vload_n(bias + c, n - c));
            if (seen < c + VW) {
                vf at = __builtin_convertvector(vlanes(), vf);
                v = vkeep_ge(at, vset((float)(seen - c)), hidden, v);
            }
            vstore(p, v);
        }
    }
}

// soften replaces scores by e^(score - maximum) and updates the running maximum m and sum of each row;
// back receives the factor that earlier results of the row shrink by. Returns whether any is not 1.
static int soften(float* s, int64_t rows, int64_t blocks, float* m, float* sum, float* back) {
    int shrink = 0;
    for (int64_t i = 0; i < rows; i++) {
        float* p = s + i * VW;
        vf top = vset(m[i]);
        for (int64_t c = 0; c < blocks; c++) top = vmax(top, vload(p + c * rows * VW));
        const float now = vtop(top);
        const float base = now == -INFINITY ? 0 : now; // nothing visible yet: all terms become 0
        vf total = vzero(), b = vset(base);
        for (int64_t c = 0; c < blocks; c++) {
            vf e = vexp(vload(p + c * rows * VW) - b);
            vstore(p + c * rows * VW, e);
            total = total + e;
        }
        back[i] = m[i] == now ? 1 : m[i] == -INFINITY ? 0 : expf(m[i] - now);
        shrink |= back[i] != 1;
        sum[i] = sum[i] * back[i] + vsum(total);
        m[i] = now;
    }
    return shrink;
}

// attend computes queries [l0, l1) of one head; at most MAX_TILES tiles. Scratch: scores of one tile,
// then per tile the queries and the output.
static void attn(const pb_attn* a) {
    static const int64_t no_tap = 0;
    const int64_t tiles = (a->l1 - a->l0 + MR - 1) / MR, lq = a->l1 - a->l0;
    const int64_t dk = round_up(a->d, VW), dv = round_up(a->d, NR);
    float m[MAX_TILES * MR], sum[MAX_TILES * MR], back[MR];
    float* s = (float*)a->tmp;
    float* q = s + KEY_BLOCK * MR;
    float* o = q + tiles * MR * dk;
    for (int64_t t = 0; t < tiles; t++) {
        const int64_t t0 = lq * t / tiles, rows = lq * (t + 1) / tiles - t0;
        const float* from =
            (const float*)a->q + a->b * a->q_b + (a->l0 + t0) * a->q_l + a->h * a->q_h;
        pack_rows(q + t * MR * dk, from, a->q_l, rows, a->d);
        for (int64_t i = 0; i < MR * dk; i += VW) {
            float* p = q + t * MR * dk + i;
            vstore(p, vload(p) * a->scale);
        }
    }
    for (int64_t i = 0; i < tiles * MR; i++) m[i] = -INFINITY, sum[i] = 0;
    memset(o, 0, (size_t)(tiles * MR * dv) * 4);
    const int64_t keys = a->causal ? imin(a->keys, a->l1) : a->keys;
    for (int64_t k0 = 0; k0 < keys; k0 += KEY_BLOCK) {
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t t0 = lq * t / tiles, t1 = lq * (t + 1) / tiles, rows = t1 - t0;
            int64_t n = imin(keys - k0, KEY_BLOCK);
            if (a->causal) n = imin(n, a->l0 + t1 - k0);
            if (n <= 0) continue;
            span sq = {1, &no_tap, rows * VW, a->d, 0};
            for (int64_t p = 0; p < n; p += NR) {
                ukrs[rows - 1][PB_F32][n - p <= VW ? 0 : 1](
                    q + t * MR * dk, (const float*)a->kp + (k0 + p) * a->d, s + p * rows, &sq, 0);
            }
            if (a->bias || a->causal || n % VW) mask_scores(a, s, rows, a->l0 + t0, k0, n);
            float* out = o + t * MR * dv;
            if (soften(s, rows, (n + VW - 1) / VW, m + t * MR, sum + t * MR, back)) {
                for (int64_t i = 0; i < rows; i++) {
                    const vf b = vset(back[i]);
                    for (int64_t c = 0; c < dv / VW; c++) {
                        float* p = out + (c * rows + i) * VW;
                        vstore(p, vload(p) * b);
                    }
                }
            }
            span sv = {1, &no_tap, rows * VW, n, 0};
            for (int64_t d = 0; d < a->d; d += NR) {
                ukrs[rows - 1][PB_F32][a->d - d <= VW ? 0 : 1](
                    s, (const float*)a->vp + d * a->keys + k0 * NR, out + d * rows, &sv, 1);
            }
        }
    }
    for (int64_t t = 0; t < tiles; t++) {
        const int64_t t0 = lq * t / tiles, rows = lq * (t + 1) / tiles - t0;
        for (int64_t i = 0; i < rows; i++) {
            const float l = sum[t * MR + i];
            float* to = (float*)a->o + a->b * a->o_b + (a->l0 + t0 + i) * a->o_l + a->h * a->o_h;
            const vf f = vset(l > 0 ? 1 / l : 0);
            for (int64_t d = 0; d < a->d; d += VW) {
                const vf v = vload(o + t * MR * dv + (d / VW * rows + i) * VW) * f;
                if (a->d - d >= VW) vstore(to + d, v);
                else vstore_n(to + d, v, a->d - d);
            }
            if (a->lse) {
                float* lse = (float*)a->lse + a->b * a->lse_b + a->h * a->lse_h;
                lse[a->l0 + t0 + i] = l > 0 ? m[t * MR + i] + logf(l) : -INFINITY;
            }
        }
    }
}
