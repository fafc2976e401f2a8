package parallel

import (
	"context"
	"fmt"
	"math"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/vae"
	"patchbay/parallel/comm"
	"patchbay/parallel/failure"
	"patchbay/parallel/group"
	"patchbay/parallel/plan"
	"patchbay/parallel/rank"
)

// Workspace is what Engine.Do lends to one piece of work on one rank: text encoders, VAE, anything that is not the
// denoise loop.
type Workspace struct {
	Ops engine.Ops
	// Arena returns activation memory of at least the given bytes. It is one piece: a second call invalidates what the
	// first gave.
	Arena func(bytes int) (*engine.Arena, error)
	// Check returns the context's error once the job is cancelled; long work calls it between layers.
	Check func() error
	// DType is the type of activations that text encoders and autoencoder have here.
	DType engine.DType

	engine *Engine
	ctx    context.Context
}

// Do runs f on the device with nothing else running there but requests that share its places. A panic in f becomes an
// error; what names f in it.
func (e *Engine) Do(ctx context.Context, what string, f func(*Workspace) error) error {
	release, err := e.take(ctx)
	if err != nil {
		return err
	}
	defer func() { release() }()
	if e.shares != nil {
		if err = e.do(ctx, what, f); err == nil || !isFull(err) {
			return err
		}
		release()
		if release, err = e.alone(ctx); err != nil {
			release = func() {}
			return err
		}
	}
	if err := e.usable(); err != nil {
		return err
	}
	return e.relieved(func() error { return e.do(ctx, what, f) })
}

// do is one try of Do. The caller holds e.work.
func (e *Engine) do(ctx context.Context, what string, f func(*Workspace) error) error {
	l := &Workspace{Ops: e.ops, DType: e.cfg.Beside, engine: e, ctx: ctx, Check: func() error {
		if err := ctx.Err(); err != nil {
			return cancelled(err)
		}
		return nil
	}}
	l.Arena = func(bytes int) (*engine.Arena, error) {
		if e.cfg.MemoryBytes > 0 && int64(bytes) > e.cfg.MemoryBytes {
			return nil, &failure.Error{
				Code: failure.OutOfMemory,
				Text: fmt.Sprintf("%s needs %d MB, %d MB are allowed", what, bytes>>20, e.cfg.MemoryBytes>>20),
			}
		}
		if err := e.buf.Grow(e.ops, bytes); err != nil {
			return nil, err
		}
		return engine.NewArena(what, e.buf.Mem, e.buf.Bytes), nil
	}
	return group.Recovered(what, func() error { return f(l) })
}

// Share is what one rank of work that Workspace.Shared splits gets.
type Share struct {
	Rank  int
	Ops   engine.Ops          // valid during the work
	Sum   func(engine.Tensor) // adds a contiguous tensor over all ranks in place
	Check func() error        // as Workspace.Check; nil where ranks must not stop at different places
}

// Loaders are operations on the devices that the tensor group of a plan has, one for each of its ranks, which load the
// weights that Shared works with. They stay as long as the engine. One rank alone where the ranks are in other
// processes, which Task has work, and for a plan that Sample will refuse.
func (l *Workspace) Loaders(p plan.Plan) ([]engine.Ops, error) {
	if p.Tensor == 1 || l.engine.cfg.Hosts != nil || l.engine.cfg.fits(p) != nil {
		return []engine.Ops{l.Ops}, nil
	}
	out := make([]engine.Ops, p.Tensor)
	for r := range out {
		var err error
		if out[r], err = l.engine.home.OpsOf(r); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Shared runs f on so many ranks at once. The first error ends all of them.
func (l *Workspace) Shared(what string, ranks int, f func(Share) error) error {
	check := l.Check
	if !l.engine.cfg.transport().Interruptible() {
		check = nil
	}
	return l.joined(what, ranks, func(r int, ops engine.Ops, end comm.Comm) error {
		return f(Share{Rank: r, Ops: ops, Sum: sum(end), Check: check})
	})
}

// joined runs f on so many ranks of this process at once, each with operations and its end of a group of all.
func (l *Workspace) joined(what string, ranks int, f func(r int, ops engine.Ops, end comm.Comm) error) error {
	ops := make([]engine.Ops, ranks)
	for r := range ops {
		var err error
		if ops[r], err = l.engine.cfg.NewOps(r, ranks); err != nil {
			rank.CloseOps(ops[:r]...)
			return err
		}
	}
	defer rank.CloseOps(ops...)
	all := comm.Group{Name: what, Ranks: make([]int, ranks), Deadline: rendezvous}
	for r := range all.Ranks {
		all.Ranks[r] = r
	}
	ends, err := l.engine.cfg.transport().Connect(all, ops)
	if err != nil {
		return err
	}
	g := group.New(func(err error) { ends[0].Abort(err) })
	for r, end := range ends {
		g.Go(fmt.Sprintf("%s, rank %d", what, r), func() error { return f(r, ops[r], end) })
	}
	return g.Wait()
}

// sum adds a tensor over the ranks of a group in place.
func sum(end comm.Comm) func(engine.Tensor) {
	return func(t engine.Tensor) { end.Run(comm.NewAllReduce(t)) }
}

// Apart is how many ranks of other processes could share a Task by a plan, those of its tensor group. 1 where all are
// in this one, or jobs beside each other have the processes, and for a plan that Sample will refuse.
func (l *Workspace) Apart(p plan.Plan) int {
	if l.engine.cfg.Hosts == nil || l.engine.shares != nil || l.engine.cfg.fits(p) != nil {
		return 1
	}
	return p.Tensor
}

// Task has so many ranks of other processes (Apart) do a dit.Task, each with its part of the weights that m names, and
// returns the answer. done is false where they cannot: a process is missing, or has not the files or the memory.
func (l *Workspace) Task(p plan.Plan, ranks int, m Model, question []byte) (answer []byte, done bool, err error) {
	e := l.engine
	if err := e.start(p.Ranks()); err != nil {
		return nil, false, err
	}
	if n := e.places(); n > 0 && p.Ranks() > n {
		return nil, false, nil
	}
	cut := plan.OneRank()
	cut.Tensor = ranks
	held := func(at plan.Coord) dit.Held { return cut.Held(nil, at) }
	if _, err := e.hold(m, cut, nil, held); err != nil {
		if code := group.AsError(err).Code; code == failure.LoadFailed || code == failure.OutOfMemory {
			return nil, false, nil
		}
		return nil, false, e.abandon(e.because(err))
	}
	if p.Tensor == ranks && p.Pipe == 1 { // the ranks of the request
		cut = p
	}
	if e.team == nil || e.team.Plan.Tensor != ranks {
		if err := e.assemble(cut, nil); err != nil {
			return nil, false, e.abandon(err)
		}
	}
	answer, err = e.ask(l.ctx, ranks, m.Key, question)
	if err != nil {
		e.dismiss() // its exchanges may have been cut short
		return nil, false, e.abandon(e.because(err))
	}
	return answer, true, nil
}

// ask has the first ranks of the team do a task. The caller holds e.work.
func (e *Engine) ask(ctx context.Context, ranks int, key string, question []byte) ([]byte, error) {
	e.next++
	t, id := e.team, e.next
	wait := t.all(func(r int) *rank.Command {
		if r >= ranks {
			return nil
		}
		own := plan.HeldKey(key, dit.Held{Rank: r, Ranks: ranks})
		return &rank.Command{Session: id, Task: &rank.TaskCommand{Model: own, Question: question}}
	})
	stop := context.AfterFunc(ctx, (&session{team: t, id: id}).cancel)
	defer stop()
	replies, err := wait()
	if ctx.Err() != nil {
		return nil, cancelled(ctx.Err())
	}
	if err != nil {
		return nil, err
	}
	return replies[0].Answer, nil
}

// Decode turns latents [b, C, y, x] in VAE space into pictures [b, S*y, S*x, 3] as vae.Decode does, split over ranks in
// bands of latent rows: rows at the edges of a band are exchanged before every convolution, group-norm statistics are
// summed, the attention gathers keys and values. The picture equals the one-rank picture to rounding. One rank, or more
// ranks than rows, is no error: what cannot be split is not.
func (l *Workspace) Decode(net *vae.VAE, latent []float32, b, y, x, ranks int) ([]float32, error) {
	ranks = min(ranks, y, l.bands())
	if ranks <= 1 {
		env, err := l.autoencoder(vae.DecodeBytes(net.Config, l.DType, y, x))
		if err != nil {
			return nil, err
		}
		return net.Decode(env, latent, b, y, x)
	}
	c, s := net.Config.Latent(), net.Config.Scale()
	if len(latent) != b*c*y*x {
		return nil, fmt.Errorf("vae decode: %d values for a latent [%d, %d, %d, %d]", len(latent), b, c, y, x)
	}
	out := make([]float32, b*s*y*s*x*net.Config.Out)
	row := s * s * x * net.Config.Out // pixels of one latent row
	return out, l.banded("decoding", ranks, y, func(d *band) error {
		bytes := vae.BandBytes(net.Config, l.DType, d.rows, x)
		return d.each(bytes, b, func(env vae.Env, i int) error {
			z := env.Arena.Alloc(l.DType, 1, d.rows.Len(), x, c)
			d.ops.Upload(z, bandRows(latent[i*c*y*x:(i+1)*c*y*x], c, y, x, d.rows))
			picture, err := net.DecodeBand(env, z, d.rows)
			if err != nil {
				return err
			}
			at := (i*y + d.rows.Start) * row
			return d.ops.Download(out[at:at+d.rows.Len()*row], picture).Wait()
		})
	})
}

// Encode turns pictures [b, y, x, 3] with values in -1..1 into latents [b, C, y/S, x/S] in VAE space as vae.Encode
// does, split over ranks in bands of latent rows like Decode. Sides must be multiples of S.
func (l *Workspace) Encode(net *vae.VAE, picture []float32, b, y, x, ranks int) ([]float32, error) {
	c, s := net.Config.Latent(), net.Config.Scale()
	ranks = min(ranks, y/s, l.bands())
	if ranks <= 1 || y%s != 0 || x%s != 0 || len(picture) != b*y*x*net.Config.In {
		bytes := 0
		if y >= s && x >= s { // smaller ones are refused by Encode
			bytes = vae.EncodeBytes(net.Config, l.DType, y, x)
		}
		env, err := l.autoencoder(bytes)
		if err != nil {
			return nil, err
		}
		return net.Encode(env, picture, b, y, x)
	}
	ly, lx, in := y/s, x/s, net.Config.In
	out := make([]float32, b*c*ly*lx)
	return out, l.banded("encoding", ranks, ly, func(d *band) error {
		bytes := vae.EncodeBandBytes(net.Config, l.DType, d.rows, x)
		moments := make([]float32, d.rows.Len()*lx*2*c)
		return d.each(bytes, b, func(env vae.Env, i int) error {
			p := env.Arena.Alloc(l.DType, 1, s*d.rows.Len(), x, in)
			at := (i*y + s*d.rows.Start) * x * in
			d.ops.Upload(p, picture[at:at+p.Len()])
			m, err := net.EncodeBand(env, p, d.rows)
			if err != nil {
				return err
			}
			if err := d.ops.Download(moments, m).Wait(); err != nil {
				return err
			}
			for j := range d.rows.Len() * lx { // the first half of the moments is the mean; [n, 2C] -> [C, n]
				for k := range c {
					out[(i*c+k)*ly*lx+d.rows.Start*lx+j] = moments[j*2*c+k]
				}
			}
			return nil
		})
	})
}

// bands is the most bands that a picture is split into. On devices it is one: the weights are on a single one, which
// takes less time for the whole picture than others would to read them from there. Deterministic engines have no
// bands either, whose group-norm sums end in other bits.
func (l *Workspace) bands() int {
	if l.engine.cfg.DeviceOf != nil || l.engine.cfg.Deterministic {
		return 1
	}
	return math.MaxInt
}

// autoencoder is the environment of work that is not split.
func (l *Workspace) autoencoder(bytes int) (vae.Env, error) {
	arena, err := l.Arena(bytes)
	return vae.Env{
		Ops: l.Ops, Arena: arena, DType: l.DType, Check: func(int, int) error { return l.Check() },
	}, err
}

// banded runs f on so many ranks, each with its band of y latent rows.
func (l *Workspace) banded(what string, ranks, y int, f func(*band) error) error {
	rows := plan.Balanced(y, ranks)
	return l.joined("vae", ranks, func(r int, ops engine.Ops, end comm.Comm) error {
		own := vae.Band{Start: rows[r].Start, End: rows[r].End, Total: y}
		return f(&band{l, what, ops, end, own})
	})
}

// band is one rank's part of a split decode or encode.
type band struct {
	l    *Workspace
	what string // "decoding" or "encoding", for errors
	ops  engine.Ops
	comm comm.Comm
	rows vae.Band
}

// each runs f for every item of a batch with an arena of so many bytes.
func (d *band) each(bytes, items int, f func(env vae.Env, item int) error) error {
	mem, err := d.ops.Alloc(bytes)
	if err != nil {
		return &failure.Error{
			Code: failure.OutOfMemory,
			Text: fmt.Sprintf("%s needs %d MB for a band of the picture, and the system does not give them: use a smaller "+
				"picture", d.what, bytes>>20), Cause: err,
		}
	}
	defer d.ops.Free(mem)
	arena := engine.NewArena("vae band", mem, bytes)
	env := vae.Env{
		Ops: d.ops, Arena: arena, DType: d.l.DType, Exchange: d.exchange(),
		Check: func(int, int) error { return d.l.Check() },
	}
	for i := range items {
		mark := arena.Mark()
		if err := f(env, i); err != nil {
			return err
		}
		arena.Release(mark)
	}
	return nil
}

// bandRows picks rows of a latent and puts channels last: [C, Y, X] -> [L, X, C].
func bandRows(v []float32, c, y, x int, band vae.Band) []float32 {
	out := make([]float32, 0, (band.End-band.Start)*x*c)
	for yi := band.Start; yi < band.End; yi++ {
		for xi := range x {
			for ci := range c {
				out = append(out, v[(ci*y+yi)*x+xi])
			}
		}
	}
	return out
}

// exchange is what the bands need from each other.
func (d *band) exchange() *vae.Exchange {
	me, size := d.comm.Rank(), d.comm.Size()
	return &vae.Exchange{
		Halo: func(x, above, below engine.Tensor) {
			up, down := me-1, me+1
			if down == size {
				down = -1
			}
			d.comm.SendRecv(above, up, x.Slice(1, x.Dim(1)-1, x.Dim(1)), down)
			d.comm.SendRecv(below, down, x.Slice(1, 0, 1), up)
		},
		Sum: sum(d.comm),
		Gather: func(full, part engine.Tensor) {
			counts := make([]int, size)
			for r, rows := range plan.Balanced(d.rows.Total, size) {
				counts[r] = full.Len() / d.rows.Total * rows.Len()
			}
			d.comm.Run(comm.NewAllGather(full, part, counts))
		},
	}
}
