// Convolution: the product of gemm.h whose A is walked once per tap. The input pixels that an
// output block needs are copied once, with their zero border, to [C/VW][rows][stride][cols][VW] (of
// steps, see microkernel.h); a tap is an offset in there. Columns are sorted by their remainder
// modulo the stride, so that the pixels of a register tile are neighbours for every stride.

// pack_picture fills that layout; rows and cols are the input rows and columns of one remainder.
VI void pack_picture_as(const int HOW, const pb_gemm* g, const pb_seg* x, float* to, int64_t rows,
                        int64_t cols) {
    const int64_t C = HOW == ROW_WORDS ? 2 * VW : VW;
    const int64_t es = HOW == ROW_F32 ? 4 : 2;
    const int64_t block = rows * g->stride * cols * VW;
    const int64_t y0 = g->oy0 * g->stride - g->top, x0 = g->ox0 * g->stride - g->left;
    const char* from = seg_row(x, g->b, 0);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t s = 0; s < g->stride; s++) {
            for (int64_t j = 0; j < cols; j++, to += VW) {
                const int64_t iy = y0 + r, ix = x0 + j * g->stride + s;
                float* t = to;
                if (iy < 0 || iy >= g->in_y || ix < 0 || ix >= g->in_x) {
                    for (int64_t c = 0; c < g->c_in; c += C, t += block)
                        vstore(t, vzero());
                    continue;
                }
                const char* p = from + (iy * g->x_ys + ix * x->ls) * es;
                int64_t c = 0;
                for (; c + C <= g->c_in; c += C, t += block)
                    vstore(t, load_row(HOW, p, c, C));
                if (c < g->c_in) vstore(t, load_row(HOW, p, c, g->c_in - c));
            }
        }
    }
}

static void pack_picture(const pb_gemm* g, const pb_seg* x, float* to, int64_t rows, int64_t cols) {
    switch (row_kind(x)) {
    case ROW_F32:
        pack_picture_as(ROW_F32, g, x, to, rows, cols);
        break;
    case ROW_WIDEN:
        pack_picture_as(ROW_WIDEN, g, x, to, rows, cols);
        break;
    default:
        pack_picture_as(ROW_WORDS, g, x, to, rows, cols);
    }
}

enum { MAX_TAPS = 256 };

static void conv(const pb_gemm* g) {
    tile ts[MAX_TILES];
    factor fs[PB_MAX_SEG];
    int64_t taps[MAX_TAPS];
    static const int64_t no_tap = 0;
    const pb_seg* segs = (const pb_seg*)g->seg;
    const int64_t es = act_size((int)g->y_dtype);
    const int64_t oy = g->oy1 - g->oy0, ox = g->ox1 - g->ox0;
    const int64_t rows = (oy - 1) * g->stride + g->ky;
    const int64_t cols = ((ox - 1) * g->stride + g->kx + g->stride - 1) / g->stride;
    const int64_t pixels = rows * g->stride * cols;
    float* picture = (float*)g->a;
    if (!g->packed) pack_picture(g, &segs[0], picture, rows, cols);
    for (int64_t t = 0; t < g->taps; t++) {
        const int64_t ty = t / g->kx, tx = t % g->kx;
        taps[t] = ((ty * g->stride + tx % g->stride) * cols + tx / g->stride) * VW;
    }
    fs[0] = factor_of(&segs[0], g->taps, taps);
    for (int64_t s = 1; s < g->nseg; s++)
        fs[s] = factor_of(&segs[s], 1, &no_tap);
    float* a = picture + pixels * round_up(fs[0].c, VW);
    const int64_t across = (ox + MR - 1) / MR;
    int64_t nt = 0;
    for (int64_t y = 0; y < oy; y++) {
        for (int64_t j = 0; j < across; j++, nt++) {
            tile* t = &ts[nt];
            const int64_t x0 = ox * j / across, x1 = ox * (j + 1) / across;
            t->rows = x1 - x0;
            t->a[0] = picture + (y * g->stride * g->stride * cols + x0) * VW;
            t->block[0] = pixels * VW;
            const int64_t oy_at = g->oy0 + y, ox_at = g->ox0 + x0;
            t->y = (char*)g->y + (g->b * g->y_bs + oy_at * g->y_ys + ox_at * g->y_ls) * es;
            t->res = g->res ? (const char*)g->res +
                                  (g->b * g->res_bs + oy_at * g->res_ys + ox_at * g->res_ls) * es
                            : 0;
            t->gate = 0;
            t->y_ls = g->y_ls;
            t->res_ls = g->res_ls;
            for (int64_t s = 1; s < g->nseg; s++) { // adapters: rows of the small product
                const int64_t l = oy_at * g->out_x + ox_at;
                t->a[s] = a;
                t->block[s] = t->rows * VW;
                if (!g->packed) {
                    pack_rows(row_kind(&segs[s]), a, seg_row(&segs[s], g->b, l), segs[s].ls,
                              t->rows, segs[s].k);
                }
                a += MR * round_up(fs[s].c, VW);
            }
        }
    }
    run_tiles(g, ts, nt, fs, g->nseg);
}

static void gemm(const pb_gemm* g) {
    if (g->taps) {
        conv(g);
    } else {
        linear(g);
    }
    tiles_off();
}
