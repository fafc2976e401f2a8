// Copies with conversion between f32 and bf16 and between any strides.

#define COPY_ROW(TO, FROM, VALUE)                                                                  \
    do {                                                                                           \
        TO* y = (TO*)dst;                                                                          \
        const FROM* x = (const FROM*)src;                                                          \
        if (a->dst_last == 1 && a->src_last == 1) {                                                \
            for (int64_t i = 0; i < n; i++) {                                                      \
                const FROM v = x[i];                                                               \
                y[i] = VALUE;                                                                      \
            }                                                                                      \
        } else {                                                                                   \
            for (int64_t i = 0; i < n; i++) {                                                      \
                const FROM v = x[i * a->src_last];                                                 \
                y[i * a->dst_last] = VALUE;                                                        \
            }                                                                                      \
        }                                                                                          \
    } while (0)

// copy takes element sizes from the dtypes: PB_F32 and PB_BF16 are converted into each other, equal
// dtypes of 1, 2, 4 and 8 bytes (given as -1, -2, -4, -8) are moved.
void KERNEL(copy)(const pb_copy* a) {
    const int64_t n = a->rows.n;
    const int64_t ds = a->dst_dtype < 0 ? -a->dst_dtype : a->dst_dtype == PB_F32 ? 4 : 2;
    const int64_t ss = a->src_dtype < 0 ? -a->src_dtype : a->src_dtype == PB_F32 ? 4 : 2;
    row_at at = first_row(&a->rows);
    for (int64_t r = a->rows.r0; r < a->rows.r1; r++, next_row(&a->rows, &at)) {
        char* dst = (char*)a->dst.p + row_offset(&a->dst, &at) * ds;
        const char* src = (const char*)a->src.p + row_offset(&a->src, &at) * ss;
        if (a->dst_dtype == PB_F32) {
            COPY_ROW(float, uint16_t, widen_bf16(v));
        } else if (a->dst_dtype == PB_BF16) {
            COPY_ROW(uint16_t, float, narrow_bf16(v));
        } else if (a->dst_last == 1 && a->src_last == 1) {
            memcpy(dst, src, (size_t)(n * ds));
        } else if (ds == 1) {
            COPY_ROW(uint8_t, uint8_t, v);
        } else if (ds == 2) {
            COPY_ROW(uint16_t, uint16_t, v);
        } else if (ds == 4) {
            COPY_ROW(uint32_t, uint32_t, v);
        } else {
            COPY_ROW(uint64_t, uint64_t, v);
        }
    }
}
