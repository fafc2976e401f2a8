package tests

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"patchbay/daemon"
	"patchbay/ipc/register"
	"patchbay/ipc/wire"
	"patchbay/tests/harness"
)

// TestHostsJoin checks that machines that join a group by name on the daemon's NATS server run its ranks, bit-identical
// to one process. One of another version is named and left out. One that is killed costs its job an attempt, and the
// other does the job. One that joins again is used again. The daemon is not restarted.
func TestHostsJoin(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: hosts come and go; TestHosts has them without NATS")
	}
	program := harness.Build(t)
	key := filepath.Join(t.TempDir(), "cluster.key")
	if out, err := harness.Printed(exec.Command(program, "host", "--new-key", key)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s := harness.Start(t, program, "", "--hosts", "cluster:cards", "--cluster-key", key, "--patience", "5s")
	_, err := s.Picture("none", "", 3)
	if err == nil || !strings.Contains(err.Error(), "no host has joined yet") {
		t.Errorf("without hosts: %v", err)
	}
	var now daemon.Runtime
	if b, err := os.ReadFile(daemon.RuntimePath(s.Store)); err != nil || json.Unmarshal(b, &now) != nil {
		t.Fatal(err)
	}
	const address = "old.example:7117"
	old, err := register.Join(t.Context(), now.NATS, wire.Access{}, nil, register.Config{
		Name: register.HostName("cards", address), Log: zerolog.Nop(),
		Note: func() register.Machine { return register.Machine{Address: address, Version: "0.1"} },
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	join := []string{"--join", "cards", "--nats", now.NATS}
	_, b := startMachine(t, program, key, harness.DemoModels(t), join...), startMachine(t, program, key,
		harness.DemoModels(t), join...)
	list := filepath.Join(s.Store, "hosts-cards")
	listed := func(n int) func() bool {
		return func() bool {
			text, err := os.ReadFile(list)
			return err == nil && strings.Count(string(text), "\n") == n
		}
	}
	s.Until("two hosts have joined", listed(2))
	s.Logged("a host of another version is left out: install the same on both", address)
	want, err := harness.Start(t, program, "").Picture("here", "ulysses=2", 4)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Picture("joined", "ulysses=2", 4)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) || len(got) == 0 {
		t.Error("the picture has not the bits of one process")
	}
	machineKilled(s, b)
	s.Until("the host that was killed is in the list no more", listed(1))
	b.start()
	s.Until("it has joined again", listed(2))
	seed := 10
	s.Until("it is used again", func() bool {
		seed++
		if _, err := s.Picture(strings.Repeat("a", seed), "ulysses=2", seed); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(b.log.String(), "a leader has come")
	})
}
