package optest

import (
	"bytes"
	"fmt"
	"testing"

	"patchbay/engine"
)

// runPieces checks what engine.Packed promises about its pieces: rows packed by themselves from the start of a piece
// have the same bytes as in the whole weight.
func runPieces(t *testing.T, ops engine.Ops) {
	for _, s := range [][3]int{{1, 1, 0}, {7, 5, 0}, {16, 12, 0}, {33, 17, 0}, {50, 9, 3}, {65, 64, 16}, {50, 24, 0}} {
		n, k, c := s[0], s[1], s[2]
		for i, stored := range []engine.DType{
			engine.F32, engine.BF16, engine.F16, engine.F8E4M3, engine.I8, engine.I8, engine.F8E4M3,
		} {
			unrounded, ofRows := i == 5, stored == engine.I8 || i == 6
			for _, scale := range []float32{0, 0.37} {
				if ofRows && (c != 0 || scale != 0) {
					continue
				}
				name := fmt.Sprintf("%d x %d, %d channels, %s, scale %g", n, k, c, stored, scale)
				if unrounded {
					name += ", unrounded"
				} else if ofRows {
					name += " of rows"
				}
				t.Run(name, func(t *testing.T) {
					data := make([]byte, n*k*stored.Size())
					for i := range data {
						data[i] = byte(i*7%61 + 1)
					}
					pack := func(lo, hi int) *engine.Packed {
						m := engine.Matrix{
							Data: data[lo*k*stored.Size() : hi*k*stored.Size()], DType: stored, N: hi - lo,
							K: k, Scale: scale, Unrounded: unrounded,
						}
						if ofRows {
							m.Scales = []float32{}
							for i := lo; i < hi; i++ {
								m.Scales = append(m.Scales, float32(i))
							}
						}
						p, err := ops.Pack(m, c)
						if err != nil {
							t.Fatal(err)
						}
						return p
					}
					whole := pack(0, n)
					defer ops.Free(whole.Buf)
					if whole.Buf.Host == nil {
						return // device memory
					}
					if whole.PieceRows < 1 {
						t.Fatalf("pieces of %d rows", whole.PieceRows)
					}
					pieces := (n + whole.PieceRows - 1) / whole.PieceRows
					if want := whole.Head + pieces*whole.PieceBytes; len(whole.Buf.Host) != want {
						t.Fatalf("%d bytes, want %d and %d pieces of %d", len(whole.Buf.Host), whole.Head, pieces, whole.PieceBytes)
					}
					for first := range pieces + 1 {
						for _, end := range []int{first, min(first+1, pieces), pieces} {
							part := pack(min(first*whole.PieceRows, n), min(end*whole.PieceRows, n))
							got, want := part.Buf.Host[part.Head:],
								whole.Buf.Host[whole.Head+first*whole.PieceBytes:whole.Head+end*whole.PieceBytes]
							if part.Head != whole.Head || part.PieceBytes != whole.PieceBytes ||
								!bytes.Equal(part.Buf.Host[:part.Head], whole.Buf.Host[:whole.Head]) ||
								!bytes.Equal(got, want) {
								t.Fatalf("pieces [%d, %d) packed alone differ from those of the whole", first, end)
							}
							ops.Free(part.Buf)
						}
					}
				})
			}
		}
	}
}
