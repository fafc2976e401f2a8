package daemon

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestNoHome checks that folders that are not named are refused by their flags where there is no home, and that named
// ones and those of PATCHBAY_HOME are not.
func TestNoHome(t *testing.T) {
	t.Setenv("HOME", "")
	t.Setenv("PATCHBAY_HOME", "")
	t.Setenv("PATCHBAY_MODELS", "")
	dir := t.TempDir()
	named := Config{
		Store: dir, Models: []string{dir}, Input: dir, Output: dir, Devices: "cpu", Queue: QueueDurable, Sync: SyncAlways,
		Attempts: 3, KeepJobs: 1, Workers: 1, Socket: "off",
		Limits: Limits{Depth: 8, Steps: 1, Message: "1M", Pixels: "1M"},
	}
	for flag, forget := range map[string]func(*Config){
		"--store": func(c *Config) { c.Store = "" }, "--models": func(c *Config) { c.Models = nil },
		"--input": func(c *Config) { c.Input = "" }, "--output": func(c *Config) { c.Output = "" },
		"": func(*Config) {},
	} {
		complete := func() (string, error) {
			c := named
			forget(&c)
			if err := c.Complete(); err != nil {
				return "", err
			}
			err := c.CompleteDaemon()
			return c.Store, err
		}
		_, err := complete()
		if flag == "" && err != nil || flag != "" && (err == nil || !strings.Contains(err.Error(), flag+" is missing")) {
			t.Errorf("without %q: %v", flag, err)
		}
		t.Setenv("PATCHBAY_HOME", dir)
		store, err := complete()
		if err != nil || flag == "--store" && store != filepath.Join(dir, "store") {
			t.Errorf("with PATCHBAY_HOME, without %q: %s, %v", flag, store, err)
		}
		t.Setenv("PATCHBAY_HOME", "")
	}
}
