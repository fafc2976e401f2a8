package harness

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Count is what a process holds.
type Count struct {
	Files    int   // open descriptors
	Resident int64 // bytes
	threads  int
	CPU      time.Duration // used so far
}

// Census returns what a process holds, or zeros when it is gone.
func Census(pid int) Count {
	var c Count
	if entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)); err == nil {
		c.Files = len(entries)
	}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(fields[1], 10, 64)
		switch fields[0] {
		case "VmRSS:":
			c.Resident = n << 10
		case "Threads:":
			c.threads = int(n)
		}
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if _, rest, ok := bytes.Cut(stat, []byte(") ")); ok {
		for _, ticks := range strings.Fields(string(rest))[11:13] { // utime and stime, in hundredths of a second
			n, _ := strconv.ParseInt(ticks, 10, 64)
			c.CPU += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return c
}

// EventCounts returns how many events the stream has, by subject; none while the server cannot be asked.
func EventCounts(t testing.TB, url string) map[string]uint64 {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		return map[string]uint64{}
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	events, err := js.Stream(ctx, "PATCHBAY_EVENTS_1")
	if err != nil {
		return map[string]uint64{}
	}
	info, err := events.Info(ctx, jetstream.WithSubjectFilter("patchbay.v1.events.>"))
	if err != nil {
		return map[string]uint64{}
	}
	return info.State.Subjects
}
