package weights

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"patchbay/engine"
)

// joinW4A8 joins rotated weights of 4 bits, two in a byte with the first one in the low half, into the matrix of int8
// that ComfyUI's kernels multiply with (comfy_kitchen, backends/eager/w4a8_int8.py): each stands for an entry of
// weight_codebook, which times the scale of its group of inputs (weight_s_rel), rounded, is a code of 8 bits, and
// weight_s_channel has the factors of rows. Without weight_codebook the entries are the numbers from -8 to 7.
func joinW4A8(s *Set, x string, q *quantisation) error {
	w := s.tensors[x+".weight"]
	if len(w.Shape) != 2 || w.DType != engine.I8 && w.DType != engine.U8 {
		return fmt.Errorf("weight is %s %v, want a matrix of i8, each of two numbers", w.DType, w.Shape)
	}
	o, n, k := q.options(), w.Shape[0], 2*w.Shape[1]
	group := *o.Group
	switch {
	case group < 4 || 16%group != 0 && group%16 != 0 || k%group != 0:
		return fmt.Errorf("group_size is %d, must be 4, 8 or a multiple of 16 that divides the %d inputs", group, k)
	case *o.Turned == 0: // no rotation in other formats
		return fmt.Errorf("convrot_groupsize is 0, must be a power of 4 that divides the %d inputs", k)
	}
	if _, ok := s.take(x + ".weight_correction"); ok {
		return fmt.Errorf("weight_correction, which has the zero points of groups, is not read, nor is it by ComfyUI 0.33.0")
	}
	part := func(name string, shape ...int) (Stored, error) {
		t, ok := s.take(x + "." + name)
		if !ok || t.DType > engine.F64 || !slices.Equal(t.Shape, shape) {
			is := "missing"
			if ok {
				is = fmt.Sprintf("%s %v", t.DType, t.Shape)
			}
			return t, fmt.Errorf("%s is %s, want numbers of shape %v, for a weight of [%d, %d] in groups of %d", name, is,
				shape, n, k, group)
		}
		return t, nil
	}
	scales, err := part("weight_s_rel", n, k/group)
	if err != nil {
		return err
	}
	if scales.DType == engine.U8 { // files of programs without a type of 8-bit floats
		scales = storedAs(engine.F8E4M3, scales.Shape, scales.raw())
	}
	channels, err := part("weight_s_channel", n)
	if err != nil {
		return err
	}
	book := []float32{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}
	if _, ok := s.tensors[x+".weight_codebook"]; ok {
		t, err := part("weight_codebook", len(book))
		if err != nil {
			return err
		}
		book = t.F32()
	}
	return s.storeInt8(x, Stored{
		DType: engine.I8, Shape: []int{n, k}, Scales: channels.F32(), Rotated: *o.Turned, file: w.file,
		make: w4a8(w, scales, [16]float32(book), group),
	})
}

// w4a8 returns the Stored.make of joinW4A8.
func w4a8(w, scales Stored, book [16]float32, group int) func(dst []byte, lo, hi int) {
	codes := func(scale float32) (out [16]byte) {
		for i, v := range book {
			out[i] = byte(int8(max(-127, min(127, math.RoundToEven(float64(v*scale))))))
		}
		return out
	}
	of8 := sync.OnceValue(func() *[256][16]byte { // for every scale of 8 bits
		var table [256][16]byte
		for i := range table {
			table[i] = codes(engine.F32FromF8E4M3(byte(i)))
		}
		return &table
	})
	pairs := w.raw()
	return func(dst []byte, lo, hi int) {
		var two, stored []byte
		for n := 0; lo < hi; dst, lo = dst[n:], lo+n { // what is read of a file stays small
			n = min(hi-lo, runElements)
			first, last := lo/group, (lo+n-1)/group // groups, of which every row has whole ones
			of := scales.elements(&stored, first, last+1)
			read, from := pairs.Slice(lo/2, (lo+n+1)/2).View(&two), lo/2
			for g := first; g <= last; g++ {
				var code [16]byte
				if scales.DType == engine.F8E4M3 {
					code = of8()[of[g-first]]
				} else {
					var scale [1]float32
					engine.Widen(scale[:], of[(g-first)*scales.DType.Size():], scales.DType)
					code = codes(scale[0])
				}
				for i := max(lo, g*group); i < min(lo+n, (g+1)*group); i++ {
					dst[i-lo] = code[read[i/2-from]>>(4*(i%2))&15]
				}
			}
		}
	}
}
