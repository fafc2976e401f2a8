// AMX: UKR_DOT and UKR_I8 in tiles of up to 16 rows of 16 words. The layouts of microkernel.h are
// those of tiles: a block of A is R rows of VW words, VW rows of a panel are two tiles, C is NV
// tiles of R rows. All else, and the steps behind the last whole block, is the level below. Intel
// Architecture Instruction Set Extensions, "Intel AMX": a tile of sums takes even and odd halves of
// words in sums of their own (TDPBF16PS), subnormal numbers count as 0.

#if PB_ISA == 0 // in portable code, for tests
static __thread uint32_t tile_data[7][16][16]; // rows of words
static __thread int tile_config[7];            // rows
#define TILE_EACH(T) for (int i = 0; i < tile_config[T]; i++) for (int j = 0; j < 16; j++)

VI void tile_loadd(int t, const void* from, int64_t bytes) {
    for (int i = 0; i < tile_config[t]; i++)
        memcpy(tile_data[t][i], (const char*)from + i * bytes, 64);
}
VI void tile_stored(int t, void* to, int64_t bytes) {
    for (int i = 0; i < tile_config[t]; i++)
        memcpy((char*)to + i * bytes, tile_data[t][i], 64);
}
VI void tile_zero(int t) { memset(tile_data[t], 0, sizeof tile_data[t]); }
VI float tile_half(uint32_t word, int high) { return widen_bf16((uint16_t)(word >> 16 * high)); }
static void tile_dpbf16ps(int c, int a, int b) {
    TILE_EACH(c) {
        float sum, even = 0, odd = 0;
        for (int k = 0; k < 16; k++) {
            even = fmaf(tile_half(tile_data[a][i][k], 0), tile_half(tile_data[b][k][j], 0), even);
            odd = fmaf(tile_half(tile_data[a][i][k], 1), tile_half(tile_data[b][k][j], 1), odd);
        }
        memcpy(&sum, &tile_data[c][i][j], 4);
        sum += even + odd;
        memcpy(&tile_data[c][i][j], &sum, 4);
    }
}
static void tile_dpbusd(int c, int a, int b) {
    TILE_EACH(c) {
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 32; n += 8)
                tile_data[c][i][j] += (tile_data[a][i][k] >> n & 255) *
                                      (uint32_t)(int8_t)(tile_data[b][k][j] >> n);
    }
}
#else
#define tile_loadd _tile_loadd
#define tile_stored _tile_stored
#define tile_zero _tile_zero
#define tile_dpbf16ps _tile_dpbf16ps
#define tile_dpbusd _tile_dpbusd
#endif

// Sums of two vectors of one or two panels, the rows, and two tiles of a panel. Intrinsics take
// literal numbers only.
#define TILE_C0 0
#define TILE_C1 1
#define TILE_C2 2
#define TILE_C3 3
#define TILE_A 4
#define TILE_B0 5
#define TILE_B1 6

// tile_rows is how many rows the tiles of this thread have; 0: they are off.
static __thread int tile_rows;

VI void tiles_on(int rows) {
    if (rows == tile_rows) return;
    tile_rows = rows;
#if PB_ISA == 0
    for (int i = 0; i <= TILE_B1; i++)
        tile_config[i] = i < TILE_B0 ? rows : VW;
#else
    struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } __attribute__((aligned(64))) c = {.palette = 1};
    for (int i = 0; i <= TILE_B1; i++) {
        c.bytes[i] = 64;
        c.rows[i] = (uint8_t)(i < TILE_B0 ? rows : VW);
    }
    // GCC 12 says of _tile_loadconfig that it reads eight bytes
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
#endif
}

// tiles_off is called before a kernel returns: a thread with tiles has 8 KB more to save at every
// switch.
VI void tiles_off(void) {
#if PB_ISA
    if (tile_rows) _tile_release();
#endif
    tile_rows = 0;
}

#define TILE_MAC(B, C, FROM)                                                                       \
    do {                                                                                           \
        tile_loadd(B, FROM, 4 * NR);                                                               \
        if (kind == UKR_I8) {                                                                      \
            tile_dpbusd(C, TILE_A, B);                                                             \
        } else {                                                                                   \
            tile_dpbf16ps(C, TILE_A, B);                                                           \
        }                                                                                          \
    } while (0)

// tile_blocks adds the whole blocks of s in their order, so that a row has the same bits however a
// walk is cut. Two panels (d is not 0) lie next bytes apart: a product waits for that before it in
// its tile, so four tiles are faster.
VI void tile_blocks(const int kind, const int nv, int64_t rows, const float* a, const char* b,
                    float* c, int64_t next, float* d, const span* s, int add) {
    tiles_on((int)rows);
    __asm__ volatile("" : : : "memory"); // GCC 12 does not know that tile_loadd reads memory
    if (add) {
        tile_loadd(TILE_C0, c, 4 * VW);
        if (nv) tile_loadd(TILE_C1, c + rows * VW, 4 * VW);
        if (d) tile_loadd(TILE_C2, d, 4 * VW);
        if (d) tile_loadd(TILE_C3, d + rows * VW, 4 * VW);
    } else {
        tile_zero(TILE_C0);
        tile_zero(TILE_C1);
        tile_zero(TILE_C2);
        tile_zero(TILE_C3);
    }
    for (int64_t t = 0; t < s->taps; t++) {
        const float* at = a + s->tap[t];
        const char* bt = b + t * s->b_tap * 4 * NR;
        for (int64_t k = 0; k < s->c / VW; k++, at += s->block, bt += VW * 4 * NR) {
            tile_loadd(TILE_A, at, 4 * VW);
            TILE_MAC(TILE_B0, TILE_C0, bt);
            if (nv) TILE_MAC(TILE_B1, TILE_C1, bt + 4 * VW);
            if (d) TILE_MAC(TILE_B0, TILE_C2, bt + next);
            if (d) TILE_MAC(TILE_B1, TILE_C3, bt + next + 4 * VW);
        }
    }
    tile_stored(TILE_C0, c, 4 * VW);
    if (nv) tile_stored(TILE_C1, c + rows * VW, 4 * VW);
    if (d) tile_stored(TILE_C2, d, 4 * VW);
    if (d) tile_stored(TILE_C3, d + rows * VW, 4 * VW);
}

// Panels that a call may take of UKR_DOT and UKR_I8. A row alone has no walk of its own, which would
// give it other bits than among rows.
enum { UKR_PANELS = 2, UKR_ROW = 0 };

// run_ukr multiplies rows x nv + 1 vectors; with d, also the panel that lies next bytes behind,
// whole, into d.
static void run_ukr(int64_t rows, int kind, int nv, const float* a, const void* b, float* c,
                    int64_t next, float* d, const span* s, int add) {
    const int64_t full = s->c / VW * VW, tail = s->c - full;
    if ((kind != UKR_DOT && kind != UKR_I8) || full == 0) {
        ukr_of(rows, kind, d ? 1 : nv)(a, b, c, s, add);
        if (d) ukr_of(rows, kind, 1)(a, (const char*)b + next, d, s, add);
        return;
    }
    if (kind == UKR_I8 && d) {
        tile_blocks(UKR_I8, 1, rows, a, (const char*)b, c, next, d, s, add);
    } else if (kind == UKR_I8) {
        tile_blocks(UKR_I8, nv, rows, a, (const char*)b, c, 0, 0, s, add);
    } else if (d) {
        tile_blocks(UKR_DOT, 1, rows, a, (const char*)b, c, next, d, s, add);
    } else {
        tile_blocks(UKR_DOT, nv, rows, a, (const char*)b, c, 0, 0, s, add);
    }
    static const int64_t no_tap = 0;
    for (int64_t t = 0; tail && t < s->taps; t++) {
        const span rest = {1, &no_tap, s->block, tail, 0};
        const float* at = a + s->tap[t] + full / VW * s->block;
        const char* bt = (const char*)b + (t * s->b_tap + full) * 4 * NR;
        ukr_of(rows, kind, d ? 1 : nv)(at, bt, c, &rest, 1);
        if (d) ukr_of(rows, kind, 1)(at, bt + next, d, &rest, 1);
    }
}
