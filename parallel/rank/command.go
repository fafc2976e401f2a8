package rank

import (
	"fmt"

	"patchbay/engine"
	"patchbay/engine/profile"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/failure"
	"patchbay/parallel/plan"
)

// Command is one message from the leader to a rank: exactly one of the pointers is set. It is plain data without
// pointers into the leader's memory that the rank keeps, so that ranks can live in other processes; a link of the tests
// encodes every command to msgpack and back.
type Command struct {
	Session  uint64
	Open     *OpenCommand
	Evaluate *EvaluateCommand
	Task     *TaskCommand
	Close    bool
}

// OpenCommand starts a session: the rank prepares all entries, sizes and takes its buffers. The weights named by Model
// are resident on the rank.
type OpenCommand struct {
	Model     string // key of the placement
	Plan      plan.Plan
	DType     engine.DType // of activations
	Batch     int          // items of the latent that this rank works on
	Text      int          // longest text of any entry, for cutting patches
	Lanes     []plan.Lane  // blocks of every lane of a pipeline, cut once for all ranks; none: all blocks on every rank
	Entries   []EntryInput
	Timesteps dit.Floats // timesteps that will come, modulations are computed ahead for them
	Profile   int64      // start of a profile in nanoseconds of Unix time, 0: no profile
	Budget    int64      // bytes that PeakBytes may be, 0: no limit
}

// TaskCommand has the rank do a dit.Task with the others of its tensor group, in no session: Cancel knows it by
// Command.Session.
type TaskCommand struct {
	Model    string // key of the placement
	Question []byte
}

// Fits refuses a session that takes so many bytes on a device, if its budget is smaller.
func (o *OpenCommand) Fits(total int64) error {
	if o.Budget == 0 || total <= o.Budget {
		return nil
	}
	return &failure.Error{Code: failure.OutOfMemory, Field: "latent", Text: fmt.Sprintf(
		"one evaluation needs %d MB of activations and buffers, %d MB are allowed: use a smaller picture or batch",
		total>>20, o.Budget>>20)}
}

// EntryInput is one conditioning entry and the grid it is evaluated on, or several of equal shapes that are evaluated
// as one batch: OpenCommand.Batch counts the items of all of them, those of one entry are neighbours. Foreign entries
// are evaluated by other ranks (cfg axis) and carry no data.
type EntryInput struct {
	Entries   []dit.Entry
	Grid      dit.Grid
	Foreign   bool
	Residuals []Residual
	Control   []ControlInput
}

// EvaluateCommand asks for the network's prediction of some entries at one timestep.
type EvaluateCommand struct {
	Index    int // evaluation number, from 0
	Patch    int // number of the patch, 0 in whole evaluations
	Timestep float32
	Entries  []int // indices into OpenCommand.Entries
	// Whole evaluations compute every token of every entry. Others compute the image tokens of one patch, with the text if
	// Text is set, and take K and V of all other tokens from the evaluations before.
	Whole  bool
	Tokens dit.Range
	Text   bool
	// Inputs are the rows [B, L/P, C*p*p] that this rank owns of each entry, flat; only for the first stage.
	Inputs []dit.Floats
	// Sigma of the evaluation, by which control nets work or not, and what they read of each entry that has one: rows [B,
	// L, C*p*p] of this rank's place in the sequence, in a pipeline of the whole picture; nil: what they said last stays.
	Sigma   float32
	Latents []dit.Floats
}

// Reply answers a command.
type Reply struct {
	// Outputs are the predictions [B, L/P, OutChannels*p*p] of the entries asked for, flat.
	// The last stage gives them.
	Outputs []dit.Floats
	// Answer is that of a Task, by the first rank of its group.
	Answer []byte
	// PeakBytes of activations, session buffers and a device's scratch memory, in the reply to Open.
	PeakBytes int64
	// Traffic is what the rank has sent in this session so far, by axis.
	Traffic []comm.Traffic
	// Tokens counts the text and image tokens the rank's first block has computed in this session so far.
	Tokens TokenCount
	Spans  []profile.Span // of a profiled session, in the reply to Close
	// Chosen counts how the device has computed calls in this session (engine.Chooser), in the reply to Close.
	Chosen map[string]int64
	Err    *failure.Error
}

// TokenCount counts what a rank has computed: tokens that went through a block, over all evaluations, entries and
// items, and micro-steps.
type TokenCount struct{ Text, Image, MicroSteps int64 }

// Rows is plan.Part.Rows of the evaluation.
func (c *EvaluateCommand) Rows(e plan.Sequence, places []int) []dit.Rows {
	return plan.Part{Whole: c.Whole, Tokens: c.Tokens, Text: c.Text}.Rows(e, places)
}
