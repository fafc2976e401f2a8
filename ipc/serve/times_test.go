package serve_test

import (
	"errors"
	"math"
	"testing"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/pyjson"
)

// TestTimesThatOverflow checks that a time that would overflow when added to a date is refused by its name, and that
// the longest one accepted neither expires nor passes at once.
func TestTimesThatOverflow(t *testing.T) {
	c := ipctest.DialRig(t, ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{}))
	ctx := wiretest.Context(t)
	const most = 10 * 365 * 24 * 3600 * 1000
	for _, ms := range []int{-1, math.MinInt64, most + 1, math.MaxInt64 / 1_000_000, math.MaxInt64 - 1000, math.MaxInt64} {
		for field, req := range map[string]*message.RunRequest{
			"queue_ttl_ms": {QueueTTLMS: ms}, "deadline_ms": {DeadlineMS: ms},
		} {
			req.Workflow = messagetest.Graph("Wait 1")
			_, err := client.Submit(ctx, c, req)
			var e *fault.Error
			if !errors.As(err, &e) || e.Public() != fault.BadRequest || e.Field != field {
				t.Errorf("%s %d: %v, want bad_request that names it", field, ms, err)
			}
		}
		err := client.AskOne(ctx, c, message.VerbExec, "",
			&message.ExecRequest{Class: "Echo", Inputs: pyjson.NewObject("value", 1), LeaseMS: ms}, &message.ExecReply{})
		var e *fault.Error
		if !errors.As(err, &e) || e.Public() != fault.BadRequest || e.Field != "lease_ms" {
			t.Errorf("lease_ms %d: %v, want bad_request that names it", ms, err)
		}
	}
	_, _, end := ipctest.RunJob(t, c, &message.RunRequest{
		Workflow: messagetest.Graph("Wait 20"), QueueTTLMS: most, DeadlineMS: most,
	})
	if end.Type != message.EventSuccess {
		t.Errorf("a job with the longest times ended with %s: %v", end.Type, end.Error)
	}
}
