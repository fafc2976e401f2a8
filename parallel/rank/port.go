package rank

import "patchbay/parallel/scope"

// Port sends commands to one rank and receives the replies.
type Port struct {
	Rank   *Rank // for tests; the leader uses the methods
	inbox  chan call
	recode func(v any) (any, error)
}

// NewPort makes the port of a rank. recode, if not nil, passes every command and reply through an encoder and a
// decoder.
func NewPort(r *Rank, recode func(v any) (any, error)) *Port {
	return &Port{Rank: r, inbox: make(chan call, queueLength), recode: recode}
}

// Serve answers commands until Close.
func (l *Port) Serve() { l.Rank.serve(l.inbox) }

// Close ends the rank after the commands that it has.
func (l *Port) Close() {
	l.Rank.closing.Store(true)
	close(l.inbox)
}

// Cancel makes the session's running and later evaluations stop before their next block. It is safe for concurrent use.
func (l *Port) Cancel(session uint64) { l.Rank.cancel(session) }

// Progress returns how far the rank has come.
func (l *Port) Progress() Progress {
	s := l.Rank.Pos.read()
	s.Waits = l.Rank.waits()
	return s
}

// Abort ends all exchanges of the rank with a cause.
func (l *Port) Abort(cause error) {
	for _, c := range l.Rank.comms {
		c.Abort(cause)
	}
}

// Send queues c and returns a channel for the reply. Commands run in the order in which they were sent. If the rank
// panics, the reply has the panic as its error.
func (l *Port) Send(c Command) (<-chan Reply, error) {
	done := make(chan Reply, 1)
	reply := func(r Reply) { done <- r }
	if l.recode != nil {
		v, err := l.recode(c)
		if err != nil {
			return nil, err
		}
		c = v.(Command)
		reply = func(r Reply) {
			v, err := l.recode(r)
			if err != nil {
				v = Reply{Err: scope.AsError(err)}
			}
			done <- v.(Reply)
		}
	}
	l.inbox <- call{c, reply}
	return done, nil
}
