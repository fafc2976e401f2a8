package worker

import (
	"context"
	"strconv"
	"time"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/models/latent"
	"patchbay/node/value"
)

// pictureEvery is the least time between two JPEG previews of a run: 5 a second.
const pictureEvery = 200 * time.Millisecond

func (l *Local) Sample(ctx context.Context, q *message.SampleRequest,
	emit func(*message.SampleReply),
) (*message.SampleReply, error) {
	defer l.begin()()
	req := q.Built
	if req == nil {
		var err error
		if req, err = q.Lower(message.TensorReader{}); err != nil {
			return nil, wire.BadRequest(err)
		}
	}
	var shown time.Time
	res, err := l.runner.Sample(ctx, req, func(p value.ClientProgress) error {
		m := &message.SampleReply{Type: message.SampleProgress, Step: p.Step, Steps: p.Steps, Sigma: float64(p.Sigma)}
		m.Sent = p.ByAxis()
		last := p.Step == p.Steps
		switch {
		case p.Preview == nil:
		case q.Preview == "latent" && last:
			m.X0 = message.LatentTensor(p.X0, 0)
		case q.Preview == "latent":
			m.X0 = message.LatentTensor(p.X0, 1)
		case last || time.Since(shown) >= pictureEvery:
			m.JPEG, shown = p.Preview(), time.Now()
		}
		emit(m)
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	st := res.Stats
	out := &message.SampleReply{
		Type: message.SampleDone, X: message.LatentTensor(res.Latent, 0), Evals: st.Evaluations,
		Metrics: statsOf(st),
	}
	if q.WantX0 && res.X0.Len() > 0 {
		out.X0 = message.LatentTensor(res.X0, 0)
	}
	return out, nil
}

func (l *Local) Load(ctx context.Context, q *message.LoadRequest) (*message.LoadReply, error) {
	defer l.begin()()
	file, err := q.Model.Resolve(message.TensorReader{})
	if err != nil {
		return nil, wire.BadRequest(err)
	}
	if w := q.Forecast; w != nil {
		f, err := l.runner.Forecast(ctx, file, q.Plan, value.Picture{
			Width: w.Width, Height: w.Height, Batch: w.Batch, Steps: w.Steps, Text: w.Text, Entries: w.Entries,
		})
		if err != nil {
			return nil, err
		}
		return &message.LoadReply{Forecast: &message.Forecast{
			Plan: f.Best.Plan.String(), Seconds: f.Simulation.Seconds, StepSeconds: f.Simulation.StepSeconds,
			Bytes: f.Best.Memory.Total(), WeightBytes: f.Best.Memory.Weights, FreeBytes: f.Free, Device: f.Device,
			Streamed: f.Streams.Blocks, Resident: f.Streams.Resident, StepBytes: f.Streams.StepBytes,
			HostBytes: f.Streams.HostBytes, Slowdown: f.Streams.Slowdown,
		}}, nil
	}
	if len(file.Nets) > 0 {
		return nil, wire.BadRequest(wire.BadField("model.nets", "come with a run; load takes them with a forecast only"))
	}
	out, err := l.runner.Load(ctx, file, q.Plan)
	if err != nil {
		return nil, err
	}
	space := latentSpace(out.Latent)
	return &message.LoadReply{Bytes: out.Bytes, Seconds: out.Seconds, Latent: &space}, nil
}

// latentSpace describes a latent format to hosts.
func latentSpace(f latent.Format) message.LatentSpace {
	out := message.LatentSpace{Channels: f.Channels, Scale: decimal(f.Scale), Shift: decimal(f.Shift)}
	for i := range f.Std {
		out.Mean, out.Std = append(out.Mean, decimal(f.Mean[i])), append(out.Std, decimal(f.Std[i]))
	}
	return out
}

// decimal returns the shortest decimal number for a float32: 0.3611, not 0.36109998822.
func decimal(f float32) float64 {
	v, _ := strconv.ParseFloat(strconv.FormatFloat(float64(f), 'g', -1, 32), 64) // cannot fail: it was just formatted
	return v
}
