package faults

import (
	crand "crypto/rand"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
)

// powered is a disk that can lose its power: what was not synced by then is lost.
type powered struct {
	t     *testing.T
	image string
	dir   string // where it is mounted
}

// shutDown is the ioctl request that shuts down a mounted ext4 without writing anything more, EXT4_IOC_SHUTDOWN of
// linux/fs/ext4/ioctl.c, and noFlush is its flag that leaves the journal alone too.
const (
	shutDown = 0x8004587d
	noFlush  = 2
)

// newDisk makes a disk in a file. It skips the test where that is not allowed.
func newDisk(t *testing.T) *powered {
	t.Helper()
	d := &powered{t: t, image: filepath.Join(t.TempDir(), "disk"), dir: t.TempDir()}
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(d.image, 256<<20); err != nil {
		t.Fatal(err)
	}
	for _, line := range [][]string{{"mkfs.ext4", "-q", "-F", d.image}, d.mount()} {
		if out, err := harness.Printed(exec.Command(line[0], line[1:]...)); err != nil {
			t.Skipf("NOT RUN: no disk to take the power from: %s: %v %s", line[0], err, out)
		}
	}
	t.Cleanup(func() { _ = unix.Unmount(d.dir, unix.MNT_DETACH) })
	return d
}

// mount returns the command line that mounts the disk. By default ext4 writes the data of a file that replaces another
// one without being asked to, which hides that nobody asked; other file systems do not.
func (d *powered) mount() []string {
	return []string{"mount", "-o", "loop,noauto_da_alloc", d.image, d.dir}
}

// sync writes everything to the disk.
func (d *powered) sync() {
	d.onRoot(func(fd int) error { return unix.Syncfs(fd) })
}

// cut cuts the power.
func (d *powered) cut() {
	d.onRoot(func(fd int) error { return unix.IoctlSetPointerInt(fd, shutDown, noFlush) })
}

func (d *powered) onRoot(f func(fd int) error) {
	d.t.Helper()
	root, err := os.Open(d.dir)
	if err != nil {
		d.t.Fatal(err)
	}
	defer root.Close()
	if err := f(int(root.Fd())); err != nil {
		d.t.Fatal(err)
	}
}

// back restores the power once no process has open files on the disk.
func (d *powered) back() {
	d.t.Helper()
	for end := time.Now().Add(harness.Patience); ; time.Sleep(20 * time.Millisecond) {
		out, err := harness.Printed(exec.Command("umount", d.dir))
		if err == nil {
			break
		}
		if time.Now().After(end) {
			d.t.Fatalf("umount: %v %s", err, out)
		}
	}
	if out, err := harness.Printed(exec.Command("mount", d.mount()[1:]...)); err != nil {
		d.t.Fatalf("mount: %v %s", err, out)
	}
}

// TestPowerFailure checks that no job with a receipt is lost when the disks of daemons and NATS servers lose power.
func TestPowerFailure(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"Inside": powerInside, "Compacts": powerCompacts, "Cluster": powerCluster, "OneServer": powerAtOne,
		"MostServers": powerAtMost,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !soak && (name == "Cluster" || name == "MostServers") {
				t.Skip("NOT RUN without -tags soak: a minute and more")
			}
			test(t)
		})
	}
}

// powerInside puts the store and the output folder of a daemon with an embedded server on one disk.
func powerInside(t *testing.T) {
	program, d := harness.Build(t), newDisk(t)
	out := filepath.Join(d.dir, "output")
	s := harness.StartIn(t, program, "", harness.DemoModels(t), filepath.Join(d.dir, "store"),
		append(stormArgs(), "--sync", "always", "--output", out)...)
	s.Out = out
	powerStorm(t, d, nil, s)
}

// powerCompacts cuts the power after the server has written a block of the records anew, without their outdated
// revisions: the records of the jobs that wait are then in a new file only. The first time it cuts at once, the second
// time after a receipt, whose sync brings the name of the new file to the disk, but not what is in it.
func powerCompacts(t *testing.T) {
	program, d := harness.Build(t), newDisk(t)
	s := harness.StartIn(t, program, "", harness.DemoModels(t), filepath.Join(d.dir, "store"),
		"--sync", "always", "--workers", "1", "--output", filepath.Join(d.dir, "output"))
	for _, late := range []bool{false, true} {
		var jobs []string
		c := s.Client()
		submit := func(name, priority, flow string) {
			id := fmt.Sprint(name, late)
			req := &message.RunRequest{ID: id, Priority: priority, Workflow: flow, Client: longClient()}
			s.Until("there is a receipt for "+id, func() bool { // a disk that is busy for long is no refusal
				_, err := client.Submit(t.Context(), c, req)
				if err != nil && fault.From(err).Status() != http.StatusServiceUnavailable {
					t.Fatal(err)
				}
				return err == nil
			})
			jobs = append(jobs, id)
		}
		submit("first", "high", harness.DemoFlow(t, 5000)) // the others wait until it is cancelled
		s.WaitState(c, jobs[0], message.Running)
		for i := range 300 { // a block has 4 MiB: these end, one after the other, and every tenth waits until all have
			submit(fmt.Sprint("ends", i), "normal", harness.Quick)
			if i%10 == 0 {
				submit(fmt.Sprint("waits", i), "low", harness.Quick)
			}
		}
		before := blocks(t, s.Store)
		harness.Cancel(t, c, jobs[0])
		s.Until("a block is written anew", func() bool {
			for name, file := range blocks(t, s.Store) {
				if old, there := before[name]; there && old != file {
					return true
				}
			}
			return false
		})
		if late {
			submit("late", "low", harness.Quick)
		}
		d.cut()
		s.Kill()
		d.back()
		s.Launch()
		c = s.Client()
		for _, id := range jobs[1:] {
			s.WaitState(c, id, message.Done)
		}
	}
}

// longClient returns a name of a client as long as one may be, which no compression shortens much.
func longClient() string {
	b := make([]byte, 3000)
	_, _ = crand.Read(b)
	return base64.StdEncoding.EncodeToString(b)
}

// blocks returns the file number of every block of the records in the store of a daemon.
func blocks(t *testing.T, store string) map[string]uint64 {
	t.Helper()
	files := map[string]uint64{}
	names, err := filepath.Glob(filepath.Join(store, "nats", "jetstream", "$G", "streams", "KV_"+message.JobBucket,
		"msgs", "*.blk"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no blocks of records: %v", err)
	}
	for _, name := range names {
		var st unix.Stat_t
		if unix.Stat(name, &st) == nil { // a block without messages is deleted
			files[name] = st.Ino
		}
	}
	return files
}

// powerCluster puts all files of two daemons and of three NATS servers on one disk.
func powerCluster(t *testing.T) {
	program, d := harness.Build(t), newDisk(t)
	c := startCluster(t, serverDisk{d.dir, "always"}, serverDisk{d.dir, "always"}, serverDisk{d.dir, "always"})
	var all []*harness.Server
	for i := range 2 {
		out := filepath.Join(d.dir, "output")
		s := harness.StartIn(t, program, "", harness.DemoModels(t), filepath.Join(d.dir, fmt.Sprint("store", i)),
			append(stormArgs(), "--nats", c.url(i), "--output", out)...)
		s.Out = out
		all = append(all, s)
	}
	powerStorm(t, d, c, all...)
}

// powerStorm submits jobs while the power of daemons and servers fails, and checks that every job with a receipt is
// done once and that each picture is whole.
func powerStorm(t *testing.T, d *powered, c *natsCluster, all ...*harness.Server) {
	want := quietRun(t, all[0].Line[0], powerJobs)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	var url atomic.Value
	url.Store(all[0].URL)
	submitted := make(chan error, 1)
	go func() {
		for i := range want {
			req := &message.RunRequest{ID: chaosID(i), Workflow: chaosFlow(t, i)}
			for end := time.Now().Add(harness.Patience); submitOnce(url.Load().(string),
				req) != nil; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(end) {
					submitted <- fmt.Errorf("no receipt for %s within %s", req.ID, harness.Patience)
					return
				}
			}
		}
		submitted <- nil
	}()
	for range powerCuts {
		time.Sleep(time.Duration(200+rnd.IntN(1000)) * time.Millisecond)
		d.cut()
		for _, s := range all {
			s.Kill()
		}
		if c != nil {
			for _, n := range c.nodes {
				n.Kill()
			}
		}
		d.back()
		if c != nil {
			for _, n := range c.nodes {
				n.Start()
			}
			c.ready()
		}
		for _, s := range all {
			s.Launch()
		}
		url.Store(all[0].URL)
	}
	if err := <-submitted; err != nil {
		t.Fatal(err)
	}
	s, attempts := all[0], 0
	for i := range want {
		attempts += s.WaitState(s.Client(), chaosID(i), message.Done).Attempt
	}
	t.Logf("%d power failures, %d jobs took %d attempts", powerCuts, len(want), attempts)
	checkStorm(t, s, want)
}

// powerAtOne cuts the power of the server that leads the records. Its disk syncs every two minutes: it loses what came
// since and gets it from the others.
func powerAtOne(t *testing.T) {
	records := "KV_" + message.JobBucket
	var disks [3]*powered
	var folders []serverDisk
	for i := range disks {
		disks[i] = newDisk(t)
		folders = append(folders, serverDisk{disks[i].dir, "2m"})
	}
	tr := startTrial(startCluster(t, folders...))
	tr.submit(0, clusterJobs/4)
	for _, d := range disks {
		d.sync()
	}
	tr.submit(clusterJobs/4, clusterJobs/2)
	tr.whole(records)
	i := tr.leader(records)
	tr.fail(disks[i], i)
	tr.submit(clusterJobs/2, 3*clusterJobs/4)
	tr.nodes[i].Start()
	tr.submit(3*clusterJobs/4, clusterJobs)
	tr.whole(records)
	tr.finish()
}

// powerAtMost cuts the power of two of three servers, whose disks sync every two minutes, and holds the third back
// until those two have gone on with what they have: acknowledged records are gone or back at older revisions, and the
// daemons restore them. The third does not find its way back (nats-server 2.15.3: "Expected first catchup entry to be a
// snapshot and peerstate, will retry"): whoever is served by it sees what the others have lost, and jobs may wait. The
// daemons name it, and the guarantees hold once its files are removed, as docs/reliability.md says.
func powerAtMost(t *testing.T) {
	records, d := "KV_"+message.JobBucket, newDisk(t)
	tr := startTrial(startCluster(t, serverDisk{d.dir, "2m"}, serverDisk{d.dir, "2m"}))
	tr.submit(0, clusterJobs/4)
	for _, stream := range []string{records, message.EventStream} {
		tr.whole(stream)
	}
	for i := range 4 { // they run at the last sync and end after it
		id := fmt.Sprint(slow, i)
		if err := tr.create(i%2, id); err != nil {
			t.Fatal(err)
		}
		tr.past.receipts = append(tr.past.receipts, id)
	}
	tr.until("slow jobs run", func(jetstream.JetStream) bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return slices.ContainsFunc(tr.past.runs, func(r run) bool { return strings.HasPrefix(r.job, slow) })
	})
	d.sync()
	tr.submit(clusterJobs/4, 3*clusterJobs/4)
	tr.until("jobs have ended", func(jetstream.JetStream) bool {
		return !slices.ContainsFunc(tr.past.receipts, func(id string) bool {
			rec, err := tr.members[0].table.Get(id)
			return err != nil || !rec.State.Final()
		})
	})
	tr.nodes[2].Kill()
	tr.fail(d, 0, 1)
	tr.nodes[0].Start()
	tr.nodes[1].Start()
	tr.bothWrite("behind")
	tr.nodes[2].Start()
	tr.submit(3*clusterJobs/4, clusterJobs)
	for _, m := range tr.members {
		tr.until("the daemons say which server does not find its way back", func(jetstream.JetStream) bool {
			return strings.Contains(strings.Join(m.store.Space().Trouble, "\n"), "server s2 is away or behind: KV_")
		})
	}
	tr.nodes[2].Kill()
	if err := os.RemoveAll(filepath.Join(tr.store[2], "jetstream")); err != nil {
		t.Fatal(err)
	}
	tr.nodes[2].Start()
	for _, stream := range []string{records, message.EventStream} {
		tr.whole(stream)
	}
	tr.kept()
}

// fail cuts the power of a disk and kills the servers whose files are there. It leaves them stopped.
func (tr *trial) fail(d *powered, servers ...int) {
	d.cut()
	for _, i := range servers {
		tr.nodes[i].Kill()
	}
	d.back()
}

// kept is finish for servers that have lost records: every job with a receipt is done and has one terminal event, none
// ran twice, and the daemons have restored records.
func (tr *trial) kept() {
	t := tr.t
	t.Helper()
	tr.settled()
	tr.until("the records are there again", func(jetstream.JetStream) bool {
		tr.read()
		return !slices.ContainsFunc(tr.past.receipts, func(id string) bool {
			list := tr.past.records[id]
			return len(list) == 0 || list[len(list)-1].State != message.Done
		})
	})
	tr.settled()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	restored := 0
	for _, m := range tr.members {
		restored += m.store.Space().Restored
	}
	t.Logf("%d jobs, %d records written again", len(tr.past.receipts), restored)
	if restored == 0 {
		t.Error("the servers have lost nothing: this proves nothing")
	}
	for _, id := range tr.past.receipts {
		list := tr.past.records[id]
		for _, why := range endFaults(list[len(list)-1], tr.past.ends[id]) {
			t.Error(why)
		}
	}
	seen := map[string]run{}
	for _, r := range tr.past.runs {
		if was, again := seen[r.job]; again {
			t.Errorf("%s ran at %s in attempt %d, and at %s in attempt %d", r.job, was.owner, was.attempt, r.owner, r.attempt)
		}
		seen[r.job] = r
	}
}
