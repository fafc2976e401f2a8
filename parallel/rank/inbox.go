package rank

// queueLength bounds the commands that wait for one rank: pipelines queue one for each patch of at most two
// evaluations.
const queueLength = 1024

// call is a command and the function that takes its reply.
type call struct {
	command Command
	reply   func(Reply)
}

// peekable is an inbox whose calls can be looked at before their turn.
type peekable struct {
	inbox  <-chan call
	peeked []call
}

// next takes the oldest call. ok is false once the inbox is closed and empty.
func (p *peekable) next() (call call, ok bool) {
	if len(p.peeked) > 0 {
		call, p.peeked = p.peeked[0], p.peeked[1:]
		return call, true
	}
	call, ok = <-p.inbox
	return call, ok
}

// peek returns the command of the i-th waiting call, nil if there is none yet.
func (p *peekable) peek(i int) *Command {
	for len(p.peeked) <= i {
		select {
		case call, ok := <-p.inbox:
			if !ok {
				return nil
			}
			p.peeked = append(p.peeked, call)
		default:
			return nil
		}
	}
	return &p.peeked[i].command
}
