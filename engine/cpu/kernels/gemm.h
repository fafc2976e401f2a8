// Linear layers: rows are copied into the blocked layout of microkernel.h, the register tiles walk
// the panels, and the epilogue is applied to a finished tile while it is in the first cache.

enum { MAX_TILES = 64 };

// tile is a register tile of output rows: where its rows of every segment lie and where they go.
typedef struct {
    int64_t rows;
    const float* a[PB_MAX_SEG];
    int64_t block[PB_MAX_SEG];
    char* y;
    const char* res;
    const float* gate;
    const float* scales; // factors of its rows; of i8
    int64_t y_ls, res_ls;
} tile;

// factor is one product of a tile: a packed matrix and how A is walked, in steps of the
// microkernel.
typedef struct {
    const char* w;
    int64_t taps, c; // c steps a tap
    int64_t rows;    // rows of the panel a tap
    const int64_t* tap;
    int kind, blocks;
    int64_t rotated;
} factor;

// kind_of chooses how segment s is multiplied.
static int kind_of(const pb_seg* s) {
    if (s->dtype == PB_I8) return UKR_I8;
    if (s->dtype != PB_BF16) return s->dtype;
    return PB_DOT && s->x_dtype == PB_BF16 ? UKR_DOT : UKR_BF16;
}

// steps_of returns the steps of c channels.
static int64_t steps_of(int kind, int64_t c) { return kind == UKR_DOT ? (c + 1) / 2 : c; }

static factor factor_of(const pb_seg* s, int64_t taps, const int64_t* tap) {
    const int kind = kind_of(s);
    const int64_t c = s->k / taps;
    if (kind == UKR_I8) {
        const int64_t words = halves_of(kind) ? c / 2 : c;
        return (factor){(const char*)s->w + I8_HEAD * NR * 4, 1, c, I8_HEAD + words, tap, kind, 0, 0};
    }
    const int64_t rows = s->dtype == PB_BF16 ? (c + 1) / 2 : c;
    return (factor){(const char*)s->w, taps, steps_of(kind, c), rows,
                    tap,               kind, (int)s->blocks,    s->rotated};
}

// finish turns the accumulators of one tile and panel into output of type T: scale, bias,
// activation, gate, residual. c is [2][rows][VW], n the valid columns.
VI void finish(const int T, const pb_gemm* g, const tile* t, float* c, int64_t col, int64_t n) {
    const float* bias = (const float*)g->bias;
    const int64_t rows = t->rows;
    for (int64_t j = 0; j * VW < n; j++, c += rows * VW) {
        const int64_t at = col + j * VW, m = imin(VW, n - j * VW);
        if (bias || g->scale != 1) {
            vf b = bias ? vload_n(bias + at, m) : vzero(), s = vset(g->scale);
            for (int64_t i = 0; i < rows; i++)
                vstore(c + i * VW, vfma(s, vload(c + i * VW), b));
        }
        act_vectors(c, rows, g->act);
        vf gate = t->gate ? vload_n(t->gate + at, m) : vset(1);
        for (int64_t i = 0; i < rows; i++) {
            vf v = vload(c + i * VW);
            if (t->gate) v = v * gate;
            if (t->res) v = v + load_act(T, t->res, i * t->res_ls + at, m);
            store_act(T, t->y, i * t->y_ls + at, v, m);
        }
    }
}

static void finish_f32(const pb_gemm* g, const tile* t, float* c, int64_t col, int64_t n) {
    finish(PB_F32, g, t, c, col, n);
}

static void finish_bf16(const pb_gemm* g, const tile* t, float* c, int64_t col, int64_t n) {
    finish(PB_BF16, g, t, c, col, n);
}

// row_of_words tells whether the weights of f, in blocks, meet one row only: then they need not be
// stored as words.
static int row_of_words(const factor* f, const tile* ts, int64_t nt) {
    return UKR_ROW && f->kind == UKR_DOT && nt == 1 && ts->rows == 1;
}

// run_panels adds steps [c0, c1) of factor s to the accumulators of all tiles for panels
// p .. p + n, which are per floats apart.
static void run_panels(const pb_gemm* g, const tile* ts, int64_t nt, const factor* f, int64_t s,
                       int64_t p, int64_t n, int64_t c0, int64_t c1, float* acc, int64_t per,
                       int add) {
    const int64_t row = f->kind == UKR_F16 ? 2 * NR : 4 * NR;
    const int64_t skip = halves_of(f->kind) ? c0 / 2 : c0; // c0 is a multiple of VW
    const char* w = f->w + (p * f->taps * f->rows + skip) * row;
    const int nv = g->n - p * NR <= VW ? 0 : 1;
    if (f->blocks) {
        const block_form b = form_of(f->blocks);
        const int64_t inputs = f->kind == UKR_DOT ? 2 : 1, n = (c1 - c0) * inputs / b.size;
        const uint8_t* from = (const uint8_t*)f->w + p * panel_bytes(b, f->c * inputs);
        sink to = {.to = (uint32_t*)g->wide, .scale = (const float*)from, .rotated = f->rotated};
        from += (c0 * inputs / b.size * b.bytes + head_bytes(b)) * NR;
        if (row_of_words(f, ts, nt)) {
            to.x = ts->a[s] + c0;
            dot_blocks(f->blocks, from, n, to, acc, add);
            return;
        }
        widen_blocks(f->blocks, from, n, to);
        w = (const char*)g->wide;
    }
    for (int64_t i = 0; i < nt; i++, acc += 2 * MR * VW) {
        const tile* t = &ts[i];
        span sp = {f->taps, f->tap, t->block[s], c1 - c0, f->rows};
        run_ukr(t->rows, f->kind, nv, t->a[s] + c0 / VW * t->block[s], w, acc,
                f->taps * f->rows * row, n > 1 ? acc + per : 0, &sp, add);
    }
}

// run_tiles multiplies the tiles with panels g->p0 .. g->p1. A panel is cut into passes of about kc
// rows so that it and the tiles stay in the second cache; accumulators wait in g->c meanwhile.
static void run_tiles(const pb_gemm* g, const tile* ts, int64_t nt, const factor* fs, int64_t nf) {
    float* acc = (float*)g->c;
    const int64_t per = nt * 2 * MR * VW;
    for (int64_t p0 = g->p0; p0 < g->p1; p0 += g->chunk) {
        const int64_t p1 = imin(g->p1, p0 + g->chunk);
        int add = 0;
        for (int64_t s = 0; s < nf; s++) {
            const factor* f = &fs[s];
            const int64_t passes = imax(1, (f->taps * f->c + g->kc - 1) / g->kc);
            const int64_t even = imax(VW, ((f->c + passes - 1) / passes + VW - 1) / VW * VW);
            const int64_t step = !f->blocks                 ? even
                                 : row_of_words(f, ts, nt) ? f->c
                                 : f->kind == UKR_DOT      ? WIDE_INPUTS / 2
                                                           : WIDE_INPUTS;
            int64_t c0 = 0;
            do {
                const int64_t c1 = imin(f->c, c0 + step);
                for (int64_t p = p0, n; p < p1; p += n) {
                    n = f->blocks ? 1 : panels_of(f->kind, p1 - p);
                    run_panels(g, ts, nt, f, s, p, n, c0, c1, acc + (p - p0) * per, per, add);
                }
                add = 1;
                c0 = c1;
            } while (c0 < f->c);
            if (f->blocks && form_of(f->blocks).factors == OF_SUMS) {
                const int64_t panel =
                    panel_bytes(form_of(f->blocks), f->c * (f->kind == UKR_DOT ? 2 : 1));
                for (int64_t p = p0; p < p1; p++)
                    for (int64_t i = 0; i < nt; i++)
                        scale_columns((const float*)(f->w + p * panel), ts[i].rows,
                                      acc + (p - p0) * per + i * 2 * MR * VW);
            }
            if (f->kind != UKR_I8) continue;
            for (int64_t p = p0; p < p1; p++) {
                const char* head = f->w + (p * f->rows - I8_HEAD) * NR * 4;
                for (int64_t i = 0; i < nt; i++)
                    finish_i8(head, ts[i].scales, ts[i].rows,
                              acc + (p - p0) * per + i * 2 * MR * VW);
            }
        }
        for (int64_t p = p0; p < p1; p++) {
            for (int64_t i = 0; i < nt; i++) {
                (g->y_dtype == PB_F32 ? finish_f32 : finish_bf16)(
                    g, &ts[i], acc + (p - p0) * per + i * 2 * MR * VW, p * NR,
                    imin(NR, g->n - p * NR));
            }
        }
    }
}

// How rows are copied for the microkernel: f32 as they are, bf16 widened, bf16 as words.
enum { ROW_F32, ROW_WIDEN, ROW_WORDS };

static int row_kind(const pb_seg* s) {
    return s->x_dtype == PB_F32 ? ROW_F32 : kind_of(s) == UKR_DOT ? ROW_WORDS : ROW_WIDEN;
}

// load_row loads a vector of steps from channel c of a row, the last n channels of the row if those
// are fewer.
VI vf load_row(const int HOW, const char* p, int64_t c, int64_t n) {
    if (HOW == ROW_F32) return load_act(PB_F32, p, c, imin(n, VW));
    if (HOW == ROW_WIDEN) return load_act(PB_BF16, p, c, imin(n, VW));
    const uint16_t* h = (const uint16_t*)p + c;
    return n >= 2 * VW ? vload_words(h) : vload_words_n(h, n);
}

VI void pack_rows_as(const int HOW, float* to, const char* from, int64_t ls, int64_t rows,
                     int64_t k) {
    const int64_t C = HOW == ROW_WORDS ? 2 * VW : VW;
    ls *= HOW == ROW_F32 ? 4 : 2;
    int64_t c = 0;
    for (; c + C <= k; c += C, to += rows * VW) {
        for (int64_t i = 0; i < rows; i++)
            vstore(to + i * VW, load_row(HOW, from + i * ls, c, C));
    }
    if (c < k) {
        for (int64_t i = 0; i < rows; i++)
            vstore(to + i * VW, load_row(HOW, from + i * ls, c, k - c));
    }
}

// pack_rows copies k channels of rows that are ls elements apart to blocks of VW steps. Of the last
// block only the steps that exist are read later.
static void pack_rows(int how, float* to, const char* from, int64_t ls, int64_t rows, int64_t k) {
    if (how == ROW_F32) {
        pack_rows_as(ROW_F32, to, from, ls, rows, k);
    } else if (how == ROW_WIDEN) {
        pack_rows_as(ROW_WIDEN, to, from, ls, rows, k);
    } else {
        pack_rows_as(ROW_WORDS, to, from, ls, rows, k);
    }
}

// seg_row returns row l of batch item b of a segment's x.
static const char* seg_row(const pb_seg* s, int64_t b, int64_t l) {
    return (const char*)s->x + (b * s->bs + l * s->ls) * act_size(s->x_dtype);
}

// set_rows fills in where rows l.. of batch item b of a tile go.
static void set_rows(const pb_gemm* g, tile* t, int64_t b, int64_t l) {
    const int64_t es = act_size((int)g->y_dtype);
    t->y = (char*)g->y + (b * g->y_bs + l * g->y_ls) * es;
    t->res = g->res ? (const char*)g->res + (b * g->res_bs + l * g->res_ls) * es : 0;
    t->scales = g->scales ? (const float*)g->scales + b * g->rows + l : 0;
    t->gate = g->gate ? (const float*)g->gate + b / g->gate_per * g->gate_s : 0;
    t->y_ls = g->y_ls;
    t->res_ls = g->res_ls;
}

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static void linear(const pb_gemm* g) {
    static const int64_t no_tap = 0;
    tile ts[MAX_TILES];
    factor fs[PB_MAX_SEG];
    const pb_seg* segs = (const pb_seg*)g->seg;
    const int64_t nt = g->t1 - g->t0;
    float* a = (float*)g->a;
    for (int64_t s = 0; s < g->nseg; s++)
        fs[s] = factor_of(&segs[s], 1, &no_tap);
    for (int64_t i = 0; i < nt; i++) {
        const int64_t b = (g->t0 + i) / g->tiles, j = (g->t0 + i) % g->tiles;
        const int64_t l0 = g->rows * j / g->tiles, l1 = g->rows * (j + 1) / g->tiles;
        ts[i].rows = l1 - l0;
        set_rows(g, &ts[i], b, l0);
        for (int64_t s = 0; s < g->nseg; s++) {
            const pb_seg* seg = &segs[s];
            ts[i].a[s] = a;
            ts[i].block[s] = ts[i].rows * VW;
            if (!g->packed)
                pack_rows(row_kind(seg), a, seg_row(seg, b, l0), seg->ls, ts[i].rows, seg->k);
            a += MR * round_up(fs[s].c, VW);
        }
    }
    run_tiles(g, ts, nt, fs, g->nseg);
}
