package optest

import (
	"errors"
	"fmt"
	"testing"

	"patchbay/engine"
	"patchbay/engine/gguf"
)

// misuse is a call that must panic with an *engine.ShapeError that names op before it touches memory.
type misuse struct {
	op, name string
	call     func(ops engine.Ops, m *memory)
}

// memory hands out small zeroed tensors.
type memory struct {
	t     testing.TB
	ops   engine.Ops
	taken []engine.Buf
}

// free frees everything that was handed out.
func (m *memory) free() {
	for _, b := range m.taken {
		m.ops.Free(b)
	}
}

func (m *memory) of(dtype engine.DType, shape ...int) engine.Tensor {
	m.t.Helper()
	n := dtype.Size()
	for _, s := range shape {
		n *= s
	}
	buf, err := m.ops.Alloc(n)
	if err != nil {
		m.t.Fatalf("alloc %v: %v", shape, err)
	}
	m.taken = append(m.taken, buf)
	return engine.NewTensor(buf, dtype, shape...)
}

func (m *memory) f(shape ...int) engine.Tensor { return m.of(engine.F32, shape...) }

// weight returns an f32 weight [n, k] of zeros.
func (m *memory) weight(n, k int) *engine.Weight {
	m.t.Helper()
	p, err := m.ops.Pack(engine.Matrix{Data: make([]byte, 4*n*k), DType: engine.F32, N: n, K: k}, 0)
	if err != nil {
		m.t.Fatalf("pack: %v", err)
	}
	m.taken = append(m.taken, p.Buf)
	return &engine.Weight{Name: "w", Base: p}
}

// runMisuse checks every invalid call, and that Pack refuses invalid matrices.
func runMisuse(t testing.TB, ops engine.Ops) {
	for _, list := range [][]misuse{
		transferMisuse(), linearMisuse(), elementwiseMisuse(),
		attentionMisuse(), imageMisuse(),
	} {
		for _, c := range list {
			m := &memory{t: t, ops: ops}
			if err := mustPanic(c.op, func() { c.call(ops, m) }); err != nil {
				t.Errorf("%s: %s: %v", c.op, c.name, err)
			}
			m.free()
		}
	}
	for _, m := range []engine.Matrix{
		{Data: make([]byte, 15), DType: engine.F32, N: 2, K: 2},
		{Data: make([]byte, 16), DType: engine.I32, N: 2, K: 2},
		{Data: make([]byte, 16), DType: engine.F32, N: 2, K: 2, Row: 1},
		{Data: make([]byte, 16), DType: engine.F32, N: -2, K: -2},
		{Data: make([]byte, 4), DType: engine.I8, N: 2, K: 2, Scales: []float32{1, 1}, Scale: 2},
		{Data: make([]byte, 16), DType: engine.F8E4M3, N: 2, K: 8, Scales: []float32{1, 1}, Scale: 2},
		{Data: make([]byte, 16), DType: engine.F8E4M3, N: 2, K: 8, Scales: []float32{1}},
		{Data: make([]byte, 32), DType: engine.BF16, N: 2, K: 8, Scales: []float32{1, 1}},
		{Data: make([]byte, 36), DType: engine.BF16, N: 2, K: 32, Blocks: engine.NVFP4(), Inputs: []float32{1, 1}},
	} {
		if _, err := ops.Pack(m, 0); err == nil {
			t.Errorf("Pack of [%d, %d] %s, row %d, %d bytes: no error", m.N, m.K, m.DType, m.Row, len(m.Data))
		}
	}
	if _, err := ops.Pack(engine.Matrix{Data: make([]byte, 40), DType: engine.F32, N: 2, K: 5}, 3); err == nil {
		t.Error("Pack of K = 5 with 3 channels: no error")
	}
}

// mustPanic calls f and returns an error unless f panicked with an *engine.ShapeError that names op.
func mustPanic(op string, f func()) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
			err = errors.New("did not panic")
		case *engine.ShapeError:
			if p.Op != op || p.Rule == "" {
				err = fmt.Errorf("panicked with op %q and rule %q", p.Op, p.Rule)
			}
		default:
			err = fmt.Errorf("panicked with %T %v, want *engine.ShapeError", p, p)
		}
	}()
	f()
	return nil
}

func transferMisuse() []misuse {
	return []misuse{
		{"Upload", "too few elements", func(o engine.Ops, m *memory) { o.Upload(m.f(2, 3), make([]float32, 5)) }},
		{"Upload", "not contiguous", func(o engine.Ops, m *memory) {
			o.Upload(m.f(2, 3).Slice(1, 0, 2),
				make([]float32, 4))
		}},
		{"Upload", "index data", func(o engine.Ops, m *memory) { o.Upload(m.of(engine.I32, 4), make([]float32, 4)) }},
		{"Upload", "absent", func(o engine.Ops, _ *memory) { o.Upload(engine.Tensor{}, make([]float32, 1)) }},
		{"Download", "too many elements", func(o engine.Ops, m *memory) { o.Download(make([]float32, 7), m.f(2, 3)) }},
		{"Download", "not contiguous", func(o engine.Ops, m *memory) {
			o.Download(make([]float32, 6),
				m.f(3, 2).Transpose(0, 1))
		}},
		{"Copy", "shapes differ", func(o engine.Ops, m *memory) { o.Copy(m.f(2, 3), m.f(3, 2)) }},
		{"Copy", "same memory", func(o engine.Ops, m *memory) { x := m.f(2, 3); o.Copy(x, x) }},
		{"Copy", "overlap", func(o engine.Ops, m *memory) { x := m.f(4, 3); o.Copy(x.Slice(0, 0, 3), x.Slice(0, 1, 4)) }},
		{"Copy", "output repeated", func(o engine.Ops, m *memory) { o.Copy(m.f(1, 3).Broadcast(0, 2), m.f(2, 3)) }},
		{"Copy", "dtypes", func(o engine.Ops, m *memory) { o.Copy(m.f(3), m.of(engine.F64, 3)) }},
		{"Fill", "gaps in rows", func(o engine.Ops, m *memory) { o.Fill(m.f(4, 3).Transpose(0, 1), 1) }},
		{"Fill", "integers", func(o engine.Ops, m *memory) { o.Fill(m.of(engine.U8, 4), 1) }},
	}
}

func linearMisuse() []misuse {
	linear := func(name string, call func(o engine.Ops, m *memory)) misuse { return misuse{"Linear", name, call} }
	return []misuse{
		linear("K wrong", func(o engine.Ops, m *memory) {
			o.Linear(m.f(2, 3), m.f(2, 5), m.weight(3, 4),
				engine.Epilogue{})
		}),
		linear("N wrong", func(o engine.Ops, m *memory) {
			o.Linear(m.f(2, 4), m.f(2, 4), m.weight(3, 4),
				engine.Epilogue{})
		}),
		linear("rows differ", func(o engine.Ops, m *memory) {
			o.Linear(m.f(1, 3), m.f(2, 4), m.weight(3, 4),
				engine.Epilogue{})
		}),
		linear("dimensions differ", func(o engine.Ops, m *memory) {
			o.Linear(m.f(2, 3), m.f(1, 2, 4), m.weight(3, 4),
				engine.Epilogue{})
		}),
		linear("y is x", func(o engine.Ops, m *memory) { x := m.f(2, 4); o.Linear(x, x, m.weight(4, 4), engine.Epilogue{}) }),
		linear("no weight", func(o engine.Ops, m *memory) { o.Linear(m.f(2, 4), m.f(2, 4), nil, engine.Epilogue{}) }),
		linear("bias too long", func(o engine.Ops, m *memory) {
			w := m.weight(3, 4)
			w.Bias = m.f(4)
			o.Linear(m.f(2, 3), m.f(2, 4), w, engine.Epilogue{})
		}),
		linear("bias in bf16 of f32", func(o engine.Ops, m *memory) {
			w := m.weight(3, 4)
			w.Bias, w.BiasBF16 = m.f(3), m.f(3)
			o.Linear(m.f(2, 3), m.f(2, 4), w, engine.Epilogue{})
		}),
		linear("adapter shapes", func(o engine.Ops, m *memory) {
			w := m.weight(3, 4)
			w.Adapters = []engine.Adapter{{Down: m.weight(2, 4).Base, Up: m.weight(3, 1).Base, Scale: 1}}
			o.Linear(m.f(2, 3), m.f(2, 4), w, engine.Epilogue{})
		}),
		linear("gate rows", func(o engine.Ops, m *memory) {
			o.Linear(m.f(3, 2, 3), m.f(3, 2, 4), m.weight(3, 4), engine.Epilogue{Gate: m.f(2, 3)})
		}),
		linear("residual shape", func(o engine.Ops, m *memory) {
			o.Linear(m.f(2, 3), m.f(2, 4), m.weight(3, 4), engine.Epilogue{Residual: m.f(1, 3)})
		}),
		linear("activation", func(o engine.Ops, m *memory) {
			o.Linear(m.f(2, 3), m.f(2, 4), m.weight(3, 4), engine.Epilogue{Act: 99})
		}),
		linear("dtypes mixed", func(o engine.Ops, m *memory) {
			o.Linear(m.of(engine.BF16, 2, 3), m.f(2, 4), m.weight(3, 4), engine.Epilogue{})
		}),
		linear("x transposed", func(o engine.Ops, m *memory) {
			o.Linear(m.f(2, 3), m.f(4, 2).Transpose(0, 1), m.weight(3, 4), engine.Epilogue{})
		}),
		{"Gather", "id too large", func(o engine.Ops, m *memory) { o.Gather(m.f(1, 3), m.f(4, 3), []int32{4}) }},
		{"Gather", "id negative", func(o engine.Ops, m *memory) { o.Gather(m.f(1, 3), m.f(4, 3), []int32{-1}) }},
		{"Gather", "rows", func(o engine.Ops, m *memory) { o.Gather(m.f(2, 3), m.f(4, 3), []int32{1}) }},
		{"Gather", "table of integers", func(o engine.Ops, m *memory) {
			o.Gather(m.f(1, 3),
				m.of(engine.I32, 4, 3), []int32{1})
		}},
		{"Quantise", "type", func(o engine.Ops, m *memory) { o.Quantise(m.of(engine.F8E5M2, 2, 4), m.f(2), m.f(2, 4)) }},
		{"Quantise", "one scale a row", func(o engine.Ops, m *memory) {
			o.Quantise(m.of(engine.F8E4M3, 2, 4),
				m.f(2, 4), m.f(2, 4))
		}},
		{"Quantise", "absent scale", func(o engine.Ops, m *memory) {
			o.Quantise(m.of(engine.F8E4M3, 2, 4),
				engine.Tensor{}, m.f(2, 4))
		}},
		{"Dequantise", "shape", func(o engine.Ops, m *memory) { o.Dequantise(m.f(2, 5), m.of(engine.F8E4M3, 2, 4), m.f(2)) }},
		{"Dequantise", "broadcast result", func(o engine.Ops, m *memory) {
			o.Dequantise(m.f(1, 4).Broadcast(0, 2), m.of(engine.F8E4M3, 2, 4), m.f(2))
		}},
		{"MeanRows", "no rows", func(o engine.Ops, m *memory) { o.MeanRows(m.f(1, 3), m.f(1, 0, 3)) }},
		{"MeanRows", "shape", func(o engine.Ops, m *memory) { o.MeanRows(m.f(2, 3), m.f(1, 2, 3)) }},
	}
}

func elementwiseMisuse() []misuse {
	none := engine.Tensor{}
	return []misuse{
		{"LayerNorm", "shapes differ", func(o engine.Ops, m *memory) { o.LayerNorm(m.f(2, 3), m.f(3, 3), none, none, 1) }},
		{"LayerNorm", "w too short", func(o engine.Ops, m *memory) { o.LayerNorm(m.f(2, 3), m.f(2, 3), m.f(2), none, 1) }},
		{"LayerNorm", "b of two dimensions", func(o engine.Ops, m *memory) {
			o.LayerNorm(m.f(2, 3), m.f(2, 3),
				none, m.f(1, 3), 1)
		}},
		{"LayerNorm", "x absent", func(o engine.Ops, m *memory) { o.LayerNorm(m.f(2, 3), none, none, none, 1) }},
		{"RMSNorm", "w too long", func(o engine.Ops, m *memory) { o.RMSNorm(m.f(2, 3), m.f(2, 3), m.f(4), 1) }},
		{"RMSNorm", "y repeated", func(o engine.Ops, m *memory) { o.RMSNorm(m.f(1, 3).Broadcast(0, 2), m.f(2, 3), none, 1) }},
		{"AdaLN", "two dimensions", func(o engine.Ops, m *memory) { o.AdaLN(m.f(2, 3), m.f(2, 3), none, none, 1) }},
		{"AdaLN", "G does not divide B", func(o engine.Ops, m *memory) {
			o.AdaLN(m.f(3, 1, 2), m.f(3, 1, 2),
				m.f(2, 2), none, 1)
		}},
		{"AdaLN", "scale too short", func(o engine.Ops, m *memory) {
			o.AdaLN(m.f(2, 1, 3), m.f(2, 1, 3),
				none, m.f(2, 2), 1)
		}},
		{"GatedAdd", "r shape", func(o engine.Ops, m *memory) {
			o.GatedAdd(m.f(1, 2, 3), m.f(1, 2, 3), none,
				m.f(1, 1, 3), none)
		}},
		{"GatedAdd", "gate", func(o engine.Ops, m *memory) {
			o.GatedAdd(m.f(1, 2, 3), m.f(1, 2, 3), m.f(2, 3),
				m.f(1, 2, 3), none)
		}},
		{"GatedAdd", "bias", func(o engine.Ops, m *memory) {
			o.GatedAdd(m.f(1, 2, 3), m.f(1, 2, 3), none,
				m.f(1, 2, 3), m.f(2))
		}},
		{"Add", "b shape", func(o engine.Ops, m *memory) { o.Add(m.f(2, 2, 3), m.f(2, 2, 3), m.f(2, 1, 3)) }},
		{"Add", "b is a vector", func(o engine.Ops, m *memory) { o.Add(m.f(2, 3), m.f(2, 3), m.f(3)) }},
		{"Activate", "unknown", func(o engine.Ops, m *memory) { o.Activate(m.f(3), m.f(3), 77) }},
		{"Activate", "shape", func(o engine.Ops, m *memory) { o.Activate(m.f(3), m.f(4), engine.SiLU) }},
		{"ActivateMul", "b shape", func(o engine.Ops, m *memory) {
			o.ActivateMul(m.f(2, 3), m.f(2, 3),
				m.f(2, 2), engine.SiLU)
		}},
		{"ActivateMul", "dtypes", func(o engine.Ops, m *memory) {
			o.ActivateMul(m.f(3), m.f(3),
				m.of(engine.BF16, 3), engine.SiLU)
		}},
	}
}

func attentionMisuse() []misuse {
	none := engine.Tensor{}
	qk := func(name string, n engine.QKNorm, rope func(m *memory) engine.RoPE, d int) misuse {
		return misuse{"QKNormRoPE", name, func(o engine.Ops, m *memory) {
			q, k := m.f(1, 2, 3, d), m.f(1, 2, 3, d)
			o.QKNormRoPE(q, k, none, q, k, none, n, rope(m))
		}}
	}
	attend := func(name string, k []int, args func(m *memory) engine.AttentionArgs) misuse {
		return misuse{"Attention", name, func(o engine.Ops, m *memory) {
			o.Attention(m.f(2, 3, 2, 4), m.f(2, 3, 2, 4), m.f(k...), m.f(k...), args(m))
		}}
	}
	plain := func(*memory) engine.AttentionArgs { return engine.AttentionArgs{} }
	noRoPE := func(*memory) engine.RoPE { return engine.RoPE{} }
	return []misuse{
		qk("scale of NoNorm", engine.QKNorm{QScale: engine.FromF32(make([]float32, 4), 4)}, noRoPE, 4),
		qk("bias of RMSNorm", engine.QKNorm{Kind: engine.RMSNorm, KBias: engine.FromF32(make([]float32, 4), 4)}, noRoPE, 4),
		qk("scale too long", engine.QKNorm{Kind: engine.RMSNorm, KScale: engine.FromF32(make([]float32, 5), 5)}, noRoPE, 4),
		qk("unknown norm", engine.QKNorm{Kind: 9}, noRoPE, 4),
		qk("only cos", engine.QKNorm{}, func(m *memory) engine.RoPE { return engine.RoPE{Cos: m.f(2, 2)} }, 4),
		qk("table rows", engine.QKNorm{}, func(m *memory) engine.RoPE { return engine.RoPE{Cos: m.f(3, 2), Sin: m.f(3, 2)} },
			4),
		qk("odd D", engine.QKNorm{}, func(m *memory) engine.RoPE { return engine.RoPE{Cos: m.f(2, 1), Sin: m.f(2, 1)} }, 3),
		{"QKNormRoPE", "dq without q", func(o engine.Ops, m *memory) {
			k := m.f(1, 2, 3, 4)
			o.QKNormRoPE(m.f(1, 2, 3, 4), k, none, none, k, none, engine.QKNorm{}, engine.RoPE{})
		}},
		{"QKNormRoPE", "three dimensions", func(o engine.Ops, m *memory) {
			k := m.f(2, 3, 4)
			o.QKNormRoPE(none, k, none, none, k, none, engine.QKNorm{}, engine.RoPE{})
		}},
		attend("heads", []int{2, 3, 1, 4}, plain),
		attend("D", []int{2, 3, 2, 5}, plain),
		attend("B", []int{1, 3, 2, 4}, plain),
		attend("causal with Lq < Lk", []int{2, 5, 2, 4},
			func(*memory) engine.AttentionArgs { return engine.AttentionArgs{Causal: true} }),
		attend("KeyLen entries", []int{2, 3, 2, 4},
			func(*memory) engine.AttentionArgs { return engine.AttentionArgs{KeyLen: []int{1}} }),
		attend("KeyLen too large", []int{2, 3, 2, 4},
			func(*memory) engine.AttentionArgs { return engine.AttentionArgs{KeyLen: []int{1, 4}} }),
		attend("bias", []int{2, 3, 2, 4}, func(m *memory) engine.AttentionArgs {
			return engine.AttentionArgs{Bias: m.f(2,
				3, 4)}
		}),
		attend("LSE", []int{2, 3, 2, 4}, func(m *memory) engine.AttentionArgs {
			return engine.AttentionArgs{LSE: m.f(2,
				3, 2)}
		}),
		{"Attention", "o is q", func(o engine.Ops, m *memory) {
			q := m.f(1, 3, 2, 4)
			o.Attention(q, q, m.f(1, 3, 2, 4), m.f(1, 3, 2, 4), engine.AttentionArgs{})
		}},
		{"MergeAttention", "lse", func(o engine.Ops, m *memory) {
			o.MergeAttention(m.f(1, 3, 2, 4), m.f(1, 2, 3), m.f(1, 3, 2, 4), m.f(1, 3, 2))
		}},
		{"MergeAttention", "o", func(o engine.Ops, m *memory) {
			o.MergeAttention(m.f(1, 3, 2, 4), m.f(1, 2, 3), m.f(1, 3, 2, 5), m.f(1, 2, 3))
		}},
	}
}

func imageMisuse() []misuse {
	conv := func(name string, y []int, a engine.ConvArgs) misuse {
		return misuse{"Conv2D", name, func(o engine.Ops, m *memory) {
			o.Conv2D(m.f(y...), m.f(1, 4, 5, 2),
				m.weight(3, 18), a)
		}}
	}
	three := engine.ConvArgs{KY: 3, KX: 3, Stride: 1}
	return []misuse{
		conv("Y'", []int{1, 3, 3, 3}, three),
		conv("X'", []int{1, 2, 5, 3}, three),
		conv("N", []int{1, 2, 3, 4}, three),
		conv("kernel", []int{1, 3, 4, 3}, engine.ConvArgs{KY: 2, KX: 2, Stride: 1}),
		conv("stride 0", []int{1, 2, 3, 3}, engine.ConvArgs{KY: 3, KX: 3}),
		conv("negative padding", []int{1, 2, 2, 3}, engine.ConvArgs{KY: 3, KX: 3, Stride: 1, Left: -1}),
		{"Conv2D", "blocks", func(o engine.Ops, m *memory) {
			w := m.weight(3, 18)
			base := *w.Base
			base.Blocks, w.Base = gguf.Q8v0.Blocks(), &base
			o.Conv2D(m.f(1, 2, 3, 3), m.f(1, 4, 5, 2), w, three)
		}},
		{"GroupNormStats", "groups", func(o engine.Ops, m *memory) {
			o.GroupNormStats(m.of(engine.F64, 1, 3, 2),
				m.f(1, 2, 2, 4), 3)
		}},
		{"GroupNormStats", "f32 stats", func(o engine.Ops, m *memory) { o.GroupNormStats(m.f(1, 2, 2), m.f(1, 2, 2, 4), 2) }},
		{"GroupNormStats", "stats shape", func(o engine.Ops, m *memory) {
			o.GroupNormStats(m.of(engine.F64, 1, 4, 2),
				m.f(1, 2, 2, 4), 2)
		}},
		{"GroupNormApply", "w", func(o engine.Ops, m *memory) {
			x := m.f(1, 2, 2, 4)
			o.GroupNormApply(x, x, m.of(engine.F64, 1, 2, 2), m.f(3), m.f(4), 8, 1, engine.ActNone)
		}},
		{"GroupNormApply", "count", func(o engine.Ops, m *memory) {
			x := m.f(1, 2, 2, 4)
			o.GroupNormApply(x, x, m.of(engine.F64, 1, 2, 2), m.f(4), m.f(4), 0, 1, engine.ActNone)
		}},
		{"Upsample2x", "shape", func(o engine.Ops, m *memory) { o.Upsample2x(m.f(1, 4, 4, 2), m.f(1, 2, 3, 2)) }},
		{"Upsample2x", "channels", func(o engine.Ops, m *memory) { o.Upsample2x(m.f(1, 4, 4, 2), m.f(1, 2, 2, 3)) }},
	}
}
