package rank

import (
	"patchbay/engine"
	"patchbay/engine/profile"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// Command is one message from the leader to a rank: exactly one of Open, Evaluate, Task and Close is set. It is plain
// data, and the rank keeps no pointers into the leader's memory, so that ranks can live in other processes; a link of
// the tests encodes every command to msgpack and back.
type Command struct {
	Session  uint64 // grows from one session or task of a team to the next
	Open     *OpenCommand
	Evaluate *EvaluateCommand
	Task     *TaskCommand
	Close    bool
}

// OpenCommand starts a session: the rank sizes and takes its buffers and prepares all entries. The weights named by
// Model must be resident on the rank.
type OpenCommand struct {
	Model     string // key of the placement
	Plan      plan.Plan
	DType     engine.DType // of activations
	Batch     int          // items of the latent that this rank works on
	Text      int          // tokens of the longest text of any entry, for cutting patches
	Lanes     []dit.Range  // blocks of each lane of a pipeline, cut by the leader; none: every rank has all
	Entries   []EntryInput
	Timesteps dit.Floats // expected timesteps, whose modulations are computed ahead
	Profile   int64      // start of a profile in nanoseconds of Unix time, 0: no profile
	Budget    int64      // limit of PeakBytes, 0: none
}

// TaskCommand makes the rank run a dit.Task with the others of its tensor group, outside of sessions. Command.Session
// is its number for Cancel.
type TaskCommand struct {
	Model    string // key of the placement
	Question []byte
}

// Fits returns an error if a session takes more bytes than its budget.
func (o *OpenCommand) Fits(total int64) error {
	if o.Budget == 0 || total <= o.Budget {
		return nil
	}
	return fault.Named(fault.OutOfMemory, "latent",
		"one evaluation needs %d MB of activations and buffers, %d MB are allowed: use a smaller picture or batch",
		total>>20, o.Budget>>20)
}

// EntryInput is one conditioning entry and the grid that it is evaluated on, or several of equal shapes that are
// evaluated as one batch: OpenCommand.Batch then counts the items of all of them, and those of one entry are adjacent.
// Foreign entries are evaluated by other ranks (cfg axis) and carry no data.
type EntryInput struct {
	Entries   []dit.Entry
	Grid      dit.Grid
	Foreign   bool
	Residuals []Residual
	Control   []ControlInput
}

// ControlInput is a control net, or a model patch, on an entry.
type ControlInput struct {
	Model    string    // key of the weights, resident on the rank
	Entry    dit.Entry // conditioning of the net; of a patch only the hint
	Strength float32
	// A net works while Start >= sigma >= End, a patch always.
	Start, End float32
	Patch      bool // the weights are a dit.Patch, whole on every rank
}

// Residual is what a control net that ran elsewhere adds to the image tokens after some blocks, the same in every
// evaluation.
type Residual struct {
	Blocks []int      // indices into dit.Spec.Blocks; a block is in one residual of an entry at most
	Rows   dit.Floats // [B, L, E] of the image rows that Own names, flat
}

// EvaluateCommand asks for the network's prediction of some entries at one timestep.
type EvaluateCommand struct {
	Index    int // number from 0 among the evaluations that the network runs
	Patch    int // number of the patch, 0 in whole evaluations
	Timestep float32
	Entries  []int // indices into OpenCommand.Entries
	// Whole evaluations compute every token of every entry. Others compute the image tokens of one patch, and the text
	// if Text is set, and use K and V of all other tokens from earlier evaluations.
	Whole  bool
	Tokens dit.Range
	Text   bool
	// Inputs are the rows [B, L/P, C*p*p] of each entry that this rank owns, flat; only for the first stage.
	Inputs []dit.Floats
	// Sigma decides which control nets work. Latents are what they read of each entry: rows [B, L, C*p*p] of this
	// rank's place in the sequence, in a pipeline of the whole picture; nil: their previous outputs are used again.
	Sigma   float32
	Latents []dit.Floats
}

// Reply answers a command.
type Reply struct {
	// Outputs are the predictions [B, L/P, FeaturesOut] of the requested entries, flat: from the last stage, or
	// from all stages in a spread evaluation.
	Outputs []dit.Floats
	// Answer is the answer of a Task, from the first rank of its group.
	Answer []byte
	// PeakBytes is the memory of activations, session buffers and a device's scratch, in the reply to Open.
	PeakBytes int64
	// Traffic is what the rank has sent in this session so far, by axis.
	Traffic []comm.Traffic
	// Tokens counts the text and image tokens the rank's first block has computed in this session so far.
	Tokens TokenCount
	Spans  []profile.Span // of a profiled session, in the reply to Close
	// Chosen counts the calls of this session by the way in which the device computed them (engine.Chooser), in the
	// reply to Close.
	Chosen map[string]int64
	Err    *fault.Error
}

// TokenCount counts what a rank has computed: tokens that went through a block, over all evaluations, entries and
// items, and micro-steps.
type TokenCount struct{ Text, Image, MicroSteps int64 }

// Rows returns plan.Part.Rows of the evaluation.
func (c *EvaluateCommand) Rows(e plan.Sequence, places []int) []dit.Rows {
	return plan.Part{Whole: c.Whole, Tokens: c.Tokens, Text: c.Text}.Rows(e, places)
}
