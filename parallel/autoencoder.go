package parallel

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/vae"
	"patchbay/parallel/comm"
	"patchbay/parallel/forecast"
	"patchbay/parallel/leader"
	"patchbay/parallel/plan"
	"patchbay/parallel/process"
	"patchbay/parallel/rank"
	"patchbay/parallel/request"
	"patchbay/parallel/scope"
)

// Workspace is what Pool.Do gives to one piece of work that is not the denoise loop, such as a text encoder or the
// VAE.
type Workspace struct {
	Ops engine.Ops
	// Arena returns at least the given number of bytes of activation memory. There is one buffer: each call invalidates
	// what the previous one returned.
	Arena func(bytes int) (*engine.Arena, error)
	// Check returns an error with code Cancelled once the job's context is done. Long work calls it between layers.
	Check func() error
	// DType is the activation type of text encoders and autoencoders.
	DType engine.DType

	pool *Pool
	home *process.Local // keeps what the work uses
	ctx  context.Context
}

// Do runs f on the device. Nothing else runs there at the same time except requests that share its places
// (Config.Schedule). If memory runs out, Do frees what is kept between requests and calls f again. A panic in f becomes
// an error that names what.
func (p *Pool) Do(ctx context.Context, what string, f func(*Workspace) error) error {
	release, err := p.whole.take(ctx)
	if err != nil {
		return err
	}
	defer func() { release() }()
	if p.places != nil {
		if err = p.do(ctx, what, f); err == nil || !isFull(err) {
			return err
		}
		release()
		if release, err = p.takeAll(ctx); err != nil {
			release = func() {}
			return err
		}
	}
	if err := p.usable(); err != nil {
		return err
	}
	return p.whole.relieved(func() error { return p.do(ctx, what, f) })
}

// do is one attempt of Do. The caller must have taken p.whole.
func (p *Pool) do(ctx context.Context, what string, f func(*Workspace) error) error {
	l := &Workspace{Ops: p.ops, DType: p.whole.cfg.EncoderDType, pool: p, ctx: ctx, Check: func() error {
		if err := ctx.Err(); err != nil {
			return fault.Cancel(err)
		}
		return nil
	}}
	l.home = p.whole.home.Beside()
	defer l.home.Release()
	l.Arena = func(bytes int) (*engine.Arena, error) {
		if p.whole.cfg.MemoryBytes > 0 && int64(bytes) > p.whole.cfg.MemoryBytes {
			return nil, fault.New(fault.OutOfMemory, "%s needs %d MB, %d MB are allowed", what, bytes>>20,
				p.whole.cfg.MemoryBytes>>20)
		}
		kept, _, err := l.home.Keep(0, process.Want{
			Key: "activations", Bytes: func() int64 { return int64(bytes) }, Buffer: true,
			Load: func(int64) (process.Kept, error) {
				mem, err := p.ops.Alloc(bytes)
				return &buffer{p.ops, mem, bytes}, err
			},
		})
		if err != nil {
			return nil, err
		}
		buf := kept.(*buffer)
		return engine.NewArena(what, buf.mem, buf.bytes), nil
	}
	return scope.Recovered(what, func() error { return f(l) })
}

// buffer is the memory of activations of work beside ranks.
type buffer struct {
	ops   engine.Ops
	mem   engine.Buf
	bytes int
}

// Close frees the memory.
func (b *buffer) Close() { b.ops.Free(b.mem) }

// Keep makes something resident on the device of a rank of Loaders, beside the weights of diffusion models, and reports
// whether it had to be loaded (process.Local.Keep). It is not dropped before the work has ended, or calls Release.
func (l *Workspace) Keep(rank int, w process.Want) (kept process.Kept, loaded bool, err error) {
	return l.home.Keep(rank, w)
}

// Release allows all that the work has kept so far to be dropped, which it must not use any more.
func (l *Workspace) Release() { l.home.Release() }

// Room returns how many bytes the weights of such work may take, 0: any number. They share the memory with what they
// compute, and as much of it is theirs as would be a diffusion model's.
func (l *Workspace) Room() int64 {
	cfg := &l.pool.whole.cfg
	room := cfg.room()
	if device, ok := l.Ops.(engine.Located); ok && cfg.DeviceOf != nil {
		if _, total, err := device.DeviceMemory(); err == nil {
			free := forecast.Room(total - cfg.Reserve)
			room = min(cmp.Or(room, free), free)
		}
	}
	return room
}

// Bring brings layers from host memory just before their use, on ops of a device (rank.Bring).
func (l *Workspace) Bring(ops engine.Ops) func(*dit.Shards) (use func(layer int) error, end func(), err error) {
	return func(shards *dit.Shards) (func(int) error, func(), error) {
		return rank.Bring(ops, func() (engine.Ops, error) { return l.pool.whole.cfg.NewOps(0, 1) }, shards)
	}
}

// Share is what Workspace.Shared passes to each rank.
type Share struct {
	Rank  int
	Ops   engine.Ops          // valid during the work
	Sum   func(engine.Tensor) // adds a contiguous tensor over all ranks in place
	Check func() error        // like Workspace.Check; nil if ranks must not stop at different points
}

// Loaders returns the Ops that load the weights for Shared: one on the device of each rank of the plan's tensor group.
// They live as long as the pool. It returns l.Ops alone if the ranks are in other processes, which use Task, or if
// Sample would refuse the plan.
func (l *Workspace) Loaders(p plan.Plan) ([]engine.Ops, error) {
	if p.Tensor == 1 || l.pool.whole.cfg.Processes != nil || l.pool.whole.cfg.fits(p) != nil {
		return []engine.Ops{l.Ops}, nil
	}
	out := make([]engine.Ops, p.Tensor)
	for r := range out {
		var err error
		if out[r], err = l.pool.whole.home.OpsOf(r); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Shared runs f concurrently on the given number of ranks in this process. The first error ends all of them.
func (l *Workspace) Shared(what string, ranks int, f func(Share) error) error {
	check := l.Check
	if !l.pool.whole.cfg.transport().Interruptible() {
		check = nil
	}
	return l.joined(what, ranks, func(r int, ops engine.Ops, end comm.Comm) error {
		return f(Share{Rank: r, Ops: ops, Sum: sum(end), Check: check})
	})
}

// joined runs f concurrently on the given number of ranks in this process, each with its own Ops and its end of a group
// of all of them.
func (l *Workspace) joined(what string, ranks int, f func(r int, ops engine.Ops, end comm.Comm) error) error {
	ops := make([]engine.Ops, ranks)
	for r := range ops {
		var err error
		if ops[r], err = l.pool.whole.cfg.NewOps(r, ranks); err != nil {
			rank.CloseOps(ops[:r]...)
			return err
		}
	}
	defer rank.CloseOps(ops...)
	all := comm.Group{Name: what, Ranks: make([]int, ranks), Deadline: leader.Rendezvous}
	for r := range all.Ranks {
		all.Ranks[r] = r
	}
	ends, err := l.pool.whole.cfg.transport().Connect(all, ops)
	if err != nil {
		return err
	}
	g := scope.New(func(err error) { ends[0].Abort(err) })
	for r, end := range ends {
		g.Go(fmt.Sprintf("%s, rank %d", what, r), func() error { return f(r, ops[r], end) })
	}
	return g.Wait()
}

// sum returns a function that adds a tensor over the ranks of end's group in place.
func sum(end comm.Comm) func(engine.Tensor) {
	return func(t engine.Tensor) { end.Run(comm.NewAllReduce(t)) }
}

// RemoteTaskRanks returns how many ranks in other processes can share a Task under a plan: those of its tensor group.
// It returns 1 if all ranks are in this process, if requests share the places, or if Sample would
// refuse the plan.
func (l *Workspace) RemoteTaskRanks(p plan.Plan) int {
	if l.pool.whole.cfg.Processes == nil || l.pool.places != nil || l.pool.whole.cfg.fits(p) != nil {
		return 1
	}
	return p.Tensor
}

// Task runs a dit.Task on the given number of ranks in other processes (see RemoteTaskRanks), each with its part of
// the weights that m names, and returns the answer. done is false if they cannot run it: a process is missing, or
// lacks the files or the memory.
func (l *Workspace) Task(p plan.Plan, ranks int, m request.Model, question []byte) (answer []byte, done bool,
	err error,
) {
	e := l.pool.whole
	if err := e.start(p.Ranks()); err != nil {
		return nil, false, err
	}
	if n := e.processes.Places(); n > 0 && p.Ranks() > n {
		return nil, false, nil
	}
	cut := plan.OneRank()
	cut.Tensor = ranks
	held := func(at plan.Coord) dit.Held { return cut.Held(nil, at) }
	if _, err := e.hold(m, cut, nil, held); err != nil {
		if code := scope.AsError(err).Code; code == fault.BadCheckpoint || code == fault.OutOfMemory {
			return nil, false, nil
		}
		return nil, false, e.abandon(e.because(err))
	}
	if p.Tensor == ranks && p.Pipe == 1 { // the sampling request can keep this team
		cut = p
	}
	if e.team == nil || e.team.Plan.Tensor != ranks {
		if err := e.assemble(cut, nil); err != nil {
			return nil, false, e.abandon(err)
		}
	}
	answer, err = e.ask(l.ctx, ranks, m.Key, question)
	if err != nil {
		e.dismiss() // exchanges may have been cut short
		return nil, false, e.abandon(e.because(err))
	}
	return answer, true, nil
}

// ask runs a task on the first ranks of the team. The caller must hold e.work.
func (e *Leader) ask(ctx context.Context, ranks int, key string, question []byte) ([]byte, error) {
	t, id := e.team, e.last.Add(1)
	wait := t.All(func(r int) *rank.Command {
		if r >= ranks {
			return nil
		}
		partKey := plan.HeldKey(key, dit.Held{Rank: r, Ranks: ranks})
		return &rank.Command{Session: id, Task: &rank.TaskCommand{Model: partKey, Question: question}}
	})
	stop := context.AfterFunc(ctx, leader.NewSession(t, id).Cancel)
	defer stop()
	replies, err := wait()
	if ctx.Err() != nil {
		return nil, fault.Cancel(ctx.Err())
	}
	if err != nil {
		return nil, err
	}
	return replies[0].Answer, nil
}

// Decode turns latents [b, C, y, x] in VAE space into pictures [b, S*y, S*x, 3] as vae.Decode does, split over ranks in
// bands of latent rows: rows at the edges of a band are exchanged before every convolution, group-norm statistics are
// summed, and attention gathers keys and values. The picture equals the one-rank picture to rounding. ranks is an upper
// bound: work that cannot be split that far uses fewer ranks, or one.
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
		if y >= s && x >= s { // net.Encode refuses smaller pictures
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

// bands returns the most bands that a picture may be split into. On devices it is one: the weights are on a single
// device, which processes the whole picture faster than others could read the weights from it. Deterministic pools do
// not use bands either, because sums of group norms over bands round differently.
func (l *Workspace) bands() int {
	if l.pool.whole.cfg.DeviceOf != nil || l.pool.whole.cfg.Deterministic {
		return 1
	}
	return math.MaxInt
}

// autoencoder returns the environment for work that is not split.
func (l *Workspace) autoencoder(bytes int) (vae.Env, error) {
	arena, err := l.Arena(bytes)
	return vae.Env{
		Ops: l.Ops, Arena: arena, DType: l.DType, Check: func(int, int) error { return l.Check() },
	}, err
}

// banded runs f on the given number of ranks, each with its band of y latent rows.
func (l *Workspace) banded(what string, ranks, y int, f func(*band) error) error {
	rows := plan.Balanced(y, ranks)
	return l.joined("vae", ranks, func(r int, ops engine.Ops, end comm.Comm) error {
		share := vae.Band{Start: rows[r].Start, End: rows[r].End, Total: y}
		return f(&band{l, what, ops, end, share})
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

// each runs f for every item of a batch, with an arena of the given size in bytes.
func (d *band) each(bytes, items int, f func(env vae.Env, item int) error) error {
	mem, err := d.ops.Alloc(bytes)
	if err != nil {
		return fault.Wrap(fault.OutOfMemory, "", fmt.Errorf("%s needs %d MB for a band of the picture, and the system "+
			"does not give them: use a smaller picture: %w", d.what, bytes>>20, err))
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

// bandRows copies a band of rows out of a latent, channels last: [C, Y, X] -> [L, X, C].
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

// exchange returns the exchanges between this band and the others.
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
