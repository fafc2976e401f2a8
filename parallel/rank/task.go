package rank

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// task runs a dit.Task. The first rank of the tensor group returns the answer.
func (r *Rank) task(id uint64, c *TaskCommand) ([]byte, error) {
	r.Pos.at("beginning %s", c.Model)
	defer r.retire(id)
	model, ok := r.weights(c.Model)
	if !ok {
		return nil, fmt.Errorf("rank %d: %s is not resident", r.id, c.Model)
	}
	task, ok := dit.As[dit.Task](model)
	if !ok {
		return nil, fmt.Errorf("rank %d: %s is no task: %T", r.id, c.Model, model)
	}
	layers, group := 0, r.comms[plan.AxisTensor]
	env := dit.TaskEnv{
		Ops: r.Ops,
		Take: func(bytes int) (*engine.Arena, error) {
			if device, ok := r.Ops.(engine.Replayer); ok {
				device.Drop() // the buffer may move
			}
			err := r.acts.Grow(r.Ops, bytes)
			return engine.NewArena("task", r.acts.Mem, r.acts.Bytes), err
		},
		Check: func() error {
			layers++
			if r.Pos.at("layer %d of %s", layers, c.Model); r.Stopped(id) {
				return errStopped
			}
			return nil
		},
	}
	if group.Size() > 1 {
		env.Sum = func(t engine.Tensor) { group.Run(comm.NewAllReduce(t)) }
	}
	answer, err := task.Run(env, c.Question)
	if err != nil {
		return nil, err
	}
	for a, end := range r.comms { // not attributed to any session
		r.charged[a] = end.Traffic()
	}
	if group.Rank() > 0 {
		answer = nil
	}
	return answer, r.Ops.Sync()
}
