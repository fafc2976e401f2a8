package web

import (
	"context"
	"sync"
	"time"

	"patchbay/ipc/message"
)

// hub knows the open sockets. What a socket is sent about a job it reads from the job's log itself; the hub says which
// jobs there are to follow, and tells all others how many jobs wait and run.
type hub struct {
	h    *HTTP
	poke chan struct{} // holds a value if something was noted

	mu      sync.Mutex
	noted   []message.Event             // not looked at yet
	clients map[string]map[*socket]bool // by client id
	open    int                         // sockets
	heard   map[string]int              // by job: how many sockets of its client were told of its end
	closed  bool
}

// maxSockets bounds the open sockets.
const maxSockets = 20000

// late is how long after the end of a job a socket may open and still be told about it, if none of its client was.
const late = 5 * time.Minute

func newHub(h *HTTP) *hub {
	return &hub{
		h: h, poke: make(chan struct{}, 1), clients: map[string]map[*socket]bool{},
		heard: map[string]int{},
	}
}

// note takes in an event. The table calls it while it is locked.
func (b *hub) note(ev message.Event) {
	if ev.Type != message.EventQueued && ev.Type != message.EventStart && !message.Terminal(ev.Type) {
		return
	}
	b.mu.Lock()
	b.noted = append(b.noted, ev)
	b.mu.Unlock()
	select {
	case b.poke <- struct{}{}:
	default:
	}
}

// run works until ctx ends. The events of other daemons are not noted, so it also looks once a second.
func (b *hub) run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	told := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.poke:
			b.mu.Lock()
			noted := b.noted
			b.noted = nil
			b.mu.Unlock()
			for i := range noted {
				told = b.tell(ctx, &noted[i])
			}
		case <-tick.C:
			if n := b.h.remaining(); n != told {
				told = n
				b.each(func(s *socket) { s.status(n) })
			}
			b.follow("")
		}
	}
}

// tell passes an event on: the sockets of the job's client follow its log, in which it is, and the others are told how
// many jobs are left.
func (b *hub) tell(ctx context.Context, ev *message.Event) int {
	n := b.h.remaining()
	job, ok := b.h.jobs.Find(ev.Job)
	client, _ := job.Client.(string)
	mine := ok && client != "" && job.Kind == ""
	if ok && job.Kind == "" && ev.Type == message.EventQueued {
		b.h.past.asked(ctx, ev.Job) // of jobs that came by other carriers too, while it is known
	}
	if mine {
		b.of(client, func(s *socket) { s.follow(ev.Job) })
	}
	b.each(func(s *socket) {
		if !mine || s.id != client {
			s.status(n)
		}
	})
	return n
}

// follow lets the sockets of a client ("": of all clients) follow the jobs that wait and run, and those that ended
// lately and of which nobody has heard: another daemon may have begun and ended a job since the last look.
func (b *hub) follow(client string) {
	b.mu.Lock()
	none := b.open == 0
	b.mu.Unlock()
	if none {
		return
	}
	now := b.h.jobs.Config().Now().UnixMilli()
	list := b.h.jobs.Select(func(r *message.Record, ended bool) bool {
		id, ok := r.Client.(string)
		return ok && r.Kind == "" && (client == "" || id == client) &&
			(!ended || now-r.Finished < late.Milliseconds())
	})
	for i := range list {
		if list[i].Ended && b.wasHeard(list[i].Job) {
			continue
		}
		id, _ := list[i].Client.(string)
		b.of(id, func(s *socket) { s.follow(list[i].Job) })
	}
}

// each calls f for every socket, of for those of a client.
func (b *hub) each(f func(*socket)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, group := range b.clients {
		for s := range group {
			f(s)
		}
	}
}

func (b *hub) of(client string, f func(*socket)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.clients[client] {
		f(s)
	}
}

// enter adds a socket; false: there are too many, or the daemon is stopping.
func (b *hub) enter(s *socket) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.open >= maxSockets {
		return false
	}
	if b.clients[s.id] == nil {
		b.clients[s.id] = map[*socket]bool{}
	}
	b.clients[s.id][s] = true
	b.open++
	return true
}

func (b *hub) leave(s *socket) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.clients[s.id][s] {
		delete(b.clients[s.id], s)
		b.open--
	}
	if len(b.clients[s.id]) == 0 {
		delete(b.clients, s.id)
	}
}

// hears notes that a socket is about to be told of the end of its job, unheard that this failed.
func (b *hub) hears(job string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heard[job]++
}

func (b *hub) unheard(job string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.heard[job]--; b.heard[job] <= 0 {
		delete(b.heard, job)
	}
}

func (b *hub) wasHeard(job string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.heard[job] > 0
}

func (b *hub) forget(job string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.heard, job)
}

// close ends all sockets.
func (b *hub) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.each(func(s *socket) { s.stop() })
}
