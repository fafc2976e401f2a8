package rank

import "patchbay/engine"

// replays is what a device (engine.Replayer) has recorded of evaluations.
type replays struct {
	recording   bool                       // calls are being issued for replay
	predictions map[string][]engine.Tensor // by evaluation
}

// replay has the device replay what it recorded under key, or record the calls of issue, which sets predictions. From
// one evaluation to the next only two things change: the input, which has been uploaded, and the row of the
// modulations, which is copied to a fixed place. Exchanges between the calls are repeated.
func (r *replays) replay(device engine.Replayer, key string, runs []*entryRun, predictions *[]engine.Tensor,
	issue func() error,
) (replayed bool, err error) {
	var moving []engine.Tensor
	for _, run := range runs {
		moving = append(moving, run.state.M.Rows(run.state.Step)...)
	}
	replayed, err = device.Replay(key, moving, func(fixed []engine.Tensor) error {
		for _, run := range runs {
			n := len(run.state.M.Rows(run.state.Step))
			run.state.M, run.state.Step, fixed = run.state.M.OfRows(fixed[:n]), 0, fixed[n:]
		}
		r.recording = true
		err := issue()
		if r.predictions == nil {
			r.predictions = map[string][]engine.Tensor{}
		}
		r.recording, r.predictions[key] = false, *predictions
		return err
	})
	if replayed {
		*predictions = r.predictions[key]
	}
	return replayed, err
}
