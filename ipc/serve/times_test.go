package serve_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
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
			"queue_ttl_ms": {QueueTTLMS: ms}, "deadline_ms": {DeadlineMS: ms}, "unique_ms": {UniqueKey: "k", UniqueMS: ms},
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

// TestWhenAndOnce checks that a time in another unit, and a unique key beside another name of the job, are refused by
// the name of the field, and that a request with the key of a job gets the receipt of that job.
func TestWhenAndOnce(t *testing.T) {
	c := ipctest.DialRig(t, ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{}))
	ctx := wiretest.Context(t)
	for _, bad := range []struct {
		field string
		req   message.RunRequest
	}{
		{"not_before", message.RunRequest{NotBefore: 1_795_952_804}},
		{"not_before", message.RunRequest{NotBefore: -1}},
		{"not_before", message.RunRequest{NotBefore: math.MaxInt64}},
		{"unique_key", message.RunRequest{UniqueKey: "k", ID: "j"}},
		{"unique_key", message.RunRequest{UniqueKey: "k", Reuse: true}},
		{"unique_key", message.RunRequest{UniqueKey: strings.Repeat("k", 257)}},
		{"unique_ms", message.RunRequest{UniqueMS: 5}},
	} {
		bad.req.Workflow = messagetest.Graph("Wait 1")
		_, err := client.Submit(ctx, c, &bad.req)
		var e *fault.Error
		if !errors.As(err, &e) || e.Public() != fault.BadRequest || e.Field != bad.field {
			t.Errorf("%+v: %v, want bad_request that names %s", bad.req, err, bad.field)
		}
	}
	submit := func(ms int) message.Receipt {
		t.Helper()
		r, err := client.Submit(ctx, c, &message.RunRequest{
			Workflow: messagetest.Graph(fmt.Sprint("Wait ", ms)), UniqueKey: "nightly", UniqueMS: 60_000,
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if one, two := submit(1), submit(2); one.Duplicate || !two.Duplicate || one.Job != two.Job {
		t.Errorf("the receipts are %+v and %+v, want the second to be of the first job", one, two)
	}
}
