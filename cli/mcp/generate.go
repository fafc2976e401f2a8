package mcp

import (
	"context"
	"fmt"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

// generate runs a job and waits for it. The job is tied to the connection, which ends with the call: so it is cancelled
// when the call is, when the application hangs up, and when this process is killed.
func generate(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	req, nodes, err := c.order(ctx)
	if err != nil {
		return nil, err
	}
	req.Tied = true
	watched := watch{tell: c.tell, nodes: float64(nodes)}
	col := &client.Collector{
		Accepted: func(r message.Receipt) { c.tell(0, watched.nodes, fmt.Sprintf("job %s is %s", r.Job, r.State)) },
		Event:    watched.event,
	}
	end, err := client.Run(ctx, c.daemon, req, col)
	switch {
	case err != nil:
		return nil, err
	case end == nil:
		return nil, fmt.Errorf("%w: it ended before the job did", client.ErrNoDaemon)
	case end.Type != message.EventSuccess:
		rec := message.Record{Job: req.ID, State: message.Cancelled, Error: end.Error}
		if end.Type == message.EventExpired {
			rec.State = message.Expired
		}
		return nil, unfinished(&rec)
	}
	out := report{Job: req.ID, State: message.Done}
	var refs []message.OutputRef
	for _, f := range col.Files {
		refs = append(refs, f.Ref)
	}
	out.Files = filesOf(refs)
	which, data := answering(out.Files, col.Files)
	return result(&out, c.show(which, data)...), nil
}

// answering returns the files that answer for a job: those that were saved, else the temporary ones.
func answering(all []file, files []message.File) (which []*file, data [][]byte) {
	for _, kind := range []string{"output", "temp"} {
		for i := range all {
			if all[i].Type == kind {
				which, data = append(which, &all[i]), append(data, files[i].Data)
			}
		}
		if len(which) > 0 {
			break
		}
	}
	return which, data
}

// watch turns the events of a job into progress: how many nodes have run, and what part of the present one.
type watch struct {
	tell  func(done, total float64, message string)
	nodes float64 // of the workflow
	begun float64 // nodes that have begun
}

func (w *watch) event(ev message.Event) {
	switch ev.Type {
	case message.EventStart:
		w.begun = 0
	case message.EventExecuting:
		if ev.Node != "" {
			w.begun++
			w.tell(min(w.begun-1, w.nodes), w.nodes, fmt.Sprintf("node %s", ev.Node))
		}
	case message.EventProgress:
		value, most := number(ev.Data["value"]), number(ev.Data["max"])
		if most > 0 {
			w.tell(min(max(w.begun-1, 0)+value/most, w.nodes), w.nodes, fmt.Sprintf("node %s: %g of %g", ev.Node, value, most))
		}
	}
}

func number(v any) float64 {
	switch n := v.(type) {
	case int64:
		return float64(n)
	case float64:
		return n
	}
	return 0
}
