package parallel

import "patchbay/models/dit"

// Command is one message from the leader to a rank: exactly one of the pointers is set. It is plain data without pointers into the leader's
// memory that the rank keeps, so that ranks can live in other processes; a link of the tests encodes every command to msgpack and back.
type Command struct {
	Session  uint64
	Open     *OpenCommand
	Evaluate *EvaluateCommand
	Close    bool
}

// OpenCommand starts a session: the rank prepares all entries, sizes and takes its buffers. The weights named by Model are resident on the rank.
type OpenCommand struct {
	Model     string // key of the placement
	Batch     int    // items of the latent that this rank works on
	Entries   []EntryInput
	Timesteps []float32 // timesteps that will come, modulations are computed ahead for them
	Budget    int64     // bytes that activations and session buffers may take, 0: no limit
}

// EntryInput is one conditioning entry and the grid it is evaluated on. Foreign entries are evaluated by other ranks (cfg axis) and carry no data.
type EntryInput struct {
	Entry   dit.Entry
	Grid    dit.Grid
	Foreign bool
}

// EvaluateCommand asks for the network's prediction of some entries at one timestep.
type EvaluateCommand struct {
	Index    int // evaluation number, from 0
	Timestep float32
	Entries  []int // indices into OpenCommand.Entries
	// Inputs are the rows [B, L/P, C*p*p] that this rank owns of each entry, flat.
	Inputs [][]float32
}

// Reply answers a command.
type Reply struct {
	// Outputs are the predictions [B, L/P, OutChannels*p*p] of the entries asked for, flat.
	Outputs [][]float32
	// PeakBytes of activations and session buffers, in the reply to Open.
	PeakBytes int64
	// Traffic is what the rank has sent in this session, by axis, in the reply to Close.
	Traffic []Traffic
	Err     *Error
}

// rankLink sends commands to one rank and waits for the reply.
type rankLink struct {
	rank  *rank
	inbox chan rankCall
	// recode, if set, replaces every command and reply by what an encoder and decoder make of it.
	recode func(v any) (any, error)
}

type rankCall struct {
	command Command
	reply   chan Reply
}

// call sends c and waits for the answer. A rank that panics answers with the panic as an error.
func (l *rankLink) call(c Command) (Reply, error) {
	if l.recode != nil {
		v, err := l.recode(c)
		if err != nil {
			return Reply{}, err
		}
		c = v.(Command)
	}
	done := make(chan Reply, 1)
	l.inbox <- rankCall{c, done}
	r := <-done
	if l.recode != nil {
		v, err := l.recode(r)
		if err != nil {
			return Reply{}, err
		}
		r = v.(Reply)
	}
	if r.Err != nil {
		return Reply{}, r.Err
	}
	return r, nil
}
