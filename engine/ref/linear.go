package ref

import "patchbay/engine"

func (*Ops) Linear(y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) {
	engine.CheckLinear(y, x, w, e)
	batch, perItem := 1, x.Dim(0)
	if x.Dims() == 3 {
		batch, perItem = x.Dim(0), x.Dim(1)
	}
	if e.NoBias {
		w = &engine.Weight{Base: w.Base, Adapters: w.Adapters}
	}
	gates := modulation(e.Gate, batch, w.N(), 1)
	fill := func(dst []float64, i int) { load(dst, x, rowStart(x, i)) }
	product(rows(x), w, x.DType == engine.BF16, fill, func(i, n int, v []float64) {
		gate := gates[i/perItem][n:]
		activate(v, e.Act)
		for c := range v {
			v[c] *= gate[c]
		}
		addRow(v, e.Residual, i, n)
		store(y, rowStart(y, i)+n, v)
	})
}

// addRow adds the elements [n, n+len(v)) of row i of an optional residual.
func addRow(v []float64, residual engine.Tensor, i, n int) {
	if residual.IsZero() {
		return
	}
	var line [tileCols]float64
	load(line[:len(v)], residual, rowStart(residual, i)+n)
	for c := range v {
		v[c] += line[c]
	}
}

func (*Ops) Gather(y, table engine.Tensor, ids []int32) {
	engine.CheckGather(y, table, ids)
	line := make([]float64, y.Dim(1))
	for i, id := range ids {
		load(line, table, rowStart(table, int(id)))
		store(y, rowStart(y, i), line)
	}
}

func (*Ops) MeanRows(y, x engine.Tensor) {
	engine.CheckMeanRows(y, x)
	line, sum := make([]float64, x.Dim(2)), make([]float64, x.Dim(2))
	for b := range x.Dim(0) {
		clear(sum)
		for l := range x.Dim(1) {
			load(line, x, rowStart(x, b*x.Dim(1)+l))
			for c, v := range line {
				sum[c] += v
			}
		}
		for c := range sum {
			sum[c] /= float64(x.Dim(1))
		}
		store(y, rowStart(y, b), sum)
	}
}
