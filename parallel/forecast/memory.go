package forecast

import (
	"cmp"
	"fmt"
	"math"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
	"patchbay/parallel/rank"
)

// Memory is what one rank needs, in bytes, without text encoders and VAE.
type Memory struct {
	// Weights are all blocks, split by the tensor axis, and the whole of embeddings, conditioning and head. With
	// shard=on they are those of the rank's stage alone, or 1/P of all; with stream=on they are without the blocks that
	// come from host memory. Slots are in them.
	Weights     int64
	Slots       int64 // part of Weights: to where blocks are brought before their use
	Session     int64 // prepared text, positions, modulations and, in a pipeline, the K/V store
	Activations int64
	Exchange    int64 // communication buffers
	KV          int64 // part of Session: keys and values kept between evaluations
	Workspace   int64 // of the device's libraries; MemoryByRank leaves it 0
}

// Total returns the sum of all fields but Slots and KV, which are parts of others.
func (m Memory) Total() int64 {
	return m.Weights + m.Session + m.Activations + m.Exchange + m.Workspace
}

// MemoryByRank returns what every rank of a plan needs, from the workload alone. weightBytes is the size of one weight,
// valueBytes that of one activation (4 for f32, 2 for bf16; tables, vectors and modulations are always f32). In a
// folded pipeline, Session, Activations and Exchange are the sums of both lanes of a stage. The weights of nets are not
// included. Errors are those of LaneMemory.
func MemoryByRank(w Workload, p plan.Plan, weightBytes float64, valueBytes int) ([]Memory, error) {
	o, out := NewPartition(w, p), make([]Memory, p.Ranks())
	for r := range out {
		c := o.mesh.At(r)
		if t := o.twin(c); t != c {
			out[r] = out[o.mesh.Rank(t)]
			continue
		}
		out[r] = o.leastMemory(c, weightBytes, valueBytes)
		out[r].Session = 0 // the store is a part of what is recorded
		for _, k := range o.lanesOf(c) {
			m, err := o.LaneMemory(c, k, valueBytes)
			if err != nil {
				return nil, err
			}
			out[r].Session += m.Session
			out[r].Activations += m.Activations
			out[r].Exchange += m.Exchange
		}
	}
	return out, nil
}

// WeightsByRank returns the bytes of weights that every rank of a plan holds, without nets. weightBytes is the size of
// one weight.
func WeightsByRank(w Workload, p plan.Plan, weightBytes float64) (out []int64) {
	o := NewPartition(w, p)
	for r := range p.Ranks() {
		stay, slots := o.heldParams(o.mesh.At(r))
		out = append(out, int64(float64(stay+slots)*weightBytes))
	}
	return out
}

// leastMemory returns what rank c needs at least: weights, and the keys and values of a pipeline.
func (o *Partition) leastMemory(c plan.Coord, weightBytes float64, valueBytes int) (m Memory) {
	stay, slots := o.heldParams(c)
	m.Weights, m.Slots = int64(float64(stay+slots)*weightBytes), int64(float64(slots)*weightBytes)
	for _, k := range o.lanesOf(c) {
		m.KV += o.storeBytes(c, k, valueBytes)
	}
	m.Session = m.KV
	return m
}

// storeBytes returns the bytes of the K/V stores of lane k of rank c, without the borrowed memory of spread
// evaluations.
func (o *Partition) storeBytes(c plan.Coord, k, valueBytes int) (bytes int64) {
	if o.plan.Pipe == 1 {
		return 0
	}
	heads := o.heads(c)[c.Ulysses].Len()
	for _, i := range o.entries[c.CFG] {
		for n := o.Lanes[k].Start; n < o.Lanes[k].End; n++ {
			for a := range o.Spec.Blocks[n].Attends {
				rows := int64(o.batch[c.Data].Len()*plan.StoreRows(o.Sequence(i).Text, o.Tokens(), a)) * 2 * int64(heads)
				if o.plan.KV8 { // and a scale for each head of a row
					bytes += rows * int64(o.Spec.HeadDim+4)
				} else {
					bytes += rows * int64(o.Spec.HeadDim*valueBytes)
				}
			}
		}
	}
	return bytes
}

// LaneMemory returns what lane k of rank c needs besides weights: a session of that rank is recorded (rank.Measure) on
// a model that has shapes alone. The error says what Prepare refuses, or that the model has no outline.
func (o *Partition) LaneMemory(c plan.Coord, k, valueBytes int) (m Memory, err error) {
	held := o.plan.Held(o.Lanes, c)
	held.Part, held.Parts, held.Stream = 0, 0, 0
	model, err := outline(o.Spec, held)
	if err != nil {
		return m, err
	}
	nets := map[string]dit.Model{}
	for i := range o.Nets {
		held := o.plan.BesideHeld(c.Tensor)
		if o.Nets[i].Patch {
			held = dit.Held{}
		}
		if nets[netKey(i)], err = outline(o.Nets[i].Spec, held); err != nil {
			return m, err
		}
	}
	need, err := rank.Measure(model, o.session(c, valueBytes), o.ends(c, k), func(key string) (dit.Model, bool) {
		net, ok := nets[key]
		return net, ok
	})
	if err != nil {
		return m, fmt.Errorf("memory of %s: %w", o.plan, err)
	}
	return Memory{
		Session: int64(need.Session), Activations: int64(need.Activations), Exchange: int64(need.Exchange),
		KV: o.storeBytes(c, k, valueBytes),
	}, nil
}

// outline returns a model that has shapes alone.
func outline(spec *dit.Spec, held dit.Held) (dit.Model, error) {
	if spec.Outline == nil {
		return nil, fmt.Errorf("the shapes of %s are not known", cmp.Or(spec.Family, "the model"))
	}
	return spec.Outline.Part(held)
}

// ends returns ends with the ranks and sizes of those of the rank that runs lane k at c. In the executor's mesh, lanes
// of a folded pipeline are ranks of their own.
func (o *Partition) ends(c plan.Coord, k int) (out [plan.AxisCount]comm.Comm) {
	mesh := plan.Mesh{Plan: o.plan, Stages: o.plan.Pipe}
	mesh.Plan.Pipe, c.Pipe = len(o.Lanes), k
	for a := range out {
		ranks, at := mesh.Along(plan.Axis(a), c)
		out[a] = comm.NewSilent(at, len(ranks))
	}
	return out
}

func (o *Partition) session(c plan.Coord, valueBytes int) rank.OpenCommand {
	out := rank.OpenCommand{
		Plan: o.plan, DType: engine.BF16, Batch: o.batch[c.Data].Len(), Text: o.jointText(),
		Entries: make([]rank.EntryInput, len(o.Text)),
	}
	if valueBytes == engine.F32.Size() {
		out.DType = engine.F32
	}
	if o.plan.Pipe > 1 {
		out.Lanes = o.Lanes
	}
	for t := range o.Evaluations {
		out.Timesteps = append(out.Timesteps, float32(t))
	}
	for i := range out.Entries {
		out.Entries[i] = rank.EntryInput{Grid: o.grid(), Foreign: true}
	}
	for _, i := range o.entries[c.CFG] {
		in := &out.Entries[i]
		in.Foreign = false
		for range o.each {
			in.Entries = append(in.Entries, o.entry(i))
		}
		for k := range o.Nets {
			n := &o.Nets[k]
			for use, entry := range n.Entries {
				if entry == i {
					in.Control = append(in.Control, rank.ControlInput{
						Model: netKey(k), Entry: o.netEntry(n, use, out.Batch), Start: math.MaxFloat32, Patch: n.Patch,
					})
				}
			}
		}
	}
	return out
}

func netKey(i int) string { return fmt.Sprint("net ", i) }

// undefined returns a conditioning array without defined values.
func undefined(rows, cols int) dit.Array {
	return dit.Array{Rows: rows, Cols: cols, Data: dit.Undefined(rows * cols)}
}

// entry returns an entry of the sizes of entry i, without defined values.
func (w *Workload) entry(i int) dit.Entry {
	spec := w.Spec
	first := w.Text[i]
	if spec.Context2Dim > 0 {
		first = spec.ContextTokens
	}
	e := dit.Entry{
		Context2: undefined(w.Text[i]-first, spec.Context2Dim), Prefix: undefined(w.Prefix, spec.Width), Frames: w.Frames,
		SoundRows: w.SoundRows, Connected: w.Connected, Keyframes: w.Keyframes,
	}
	e.Context = undefined(first, spec.TextColumns(&e))
	e.SoundReference = undefined(valueOf(w.SoundReferences, i), spec.Sound.Channels*spec.Sound.Patch)
	if spec.VisionDim > 0 {
		e.Vision = undefined(w.Vision, spec.VisionDim)
	}
	if spec.TakesGuidance {
		e.Guidance = new(float32)
	}
	if spec.Concat > 0 {
		e.Concat = dit.Reference{Y: w.grid().LatentY, X: w.X, Data: dit.Undefined(spec.Concat * w.grid().LatentY * w.X)}
	}
	if n := valueOf(w.References, i); n > 0 { // a reference of one row of tokens
		p := spec.PatchSize
		e.Method = "index"
		e.References = []dit.Reference{{Y: p, X: n * p, Data: dit.Undefined(spec.Channels * p * n * p)}}
	}
	for b := range valueOf(w.Biases, i) {
		e.Biases = append(e.Biases, dit.Bias{Rows: dit.Range{Start: b, End: b + 1}})
	}
	return e
}

// netEntry returns an entry of a net, with the hint of one picture or of each picture of the batch.
func (w *Workload) netEntry(n *Net, use, batch int) dit.Entry {
	grid := n.Spec.Tokens(w.Y, w.X)
	rows := grid.Tokens()
	if n.Patch {
		rows = grid.Y * grid.X
	}
	if n.Each {
		rows *= batch
	}
	if n.Patch || n.Spec.Follows {
		return dit.Entry{Hint: undefined(rows, n.Hint)}
	}
	e := w.entry(n.Entries[use])
	e.References, e.Method, e.Biases, e.Prefix = nil, "", nil, dit.Array{}
	e.Hint, e.Mode = undefined(rows, n.Hint), valueOf(n.Types, use)
	return e
}

// localHeads returns the number of key and value heads of a tensor rank.
func (o *Partition) localHeads(c plan.Coord) int {
	return dit.Held{Rank: c.Tensor, Ranks: o.plan.Tensor}.Share(o.Spec.Groups()).Len()
}
