package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"patchbay/node/files"
	"patchbay/node/value"
)

func (c *Config) checkJobs() error {
	if _, err := ParseBytes(c.KeepBytes); err != nil {
		return refuse("--keep-bytes %w", err)
	}
	if _, err := c.resumeBytes(); err != nil {
		return refuse("--resume-bytes %w, or off", err)
	}
	switch {
	case c.Queue != QueueDurable && c.Queue != queueMemory:
		return refuse("--queue %s: want durable or memory", c.Queue)
	case c.Sync != SyncAlways && c.Sync != syncInterval:
		return refuse("--sync %s: want always or interval", c.Sync)
	case c.Attempts < 1 || c.Attempts > 100:
		return refuse("--attempts %d: want 1 to 100", c.Attempts)
	case c.KeepJobs < 1 || c.KeepJobs > 100000:
		return refuse("--keep-jobs %d: want 1 to 100000", c.KeepJobs)
	case c.KeepFiles < 0:
		return refuse("--keep-results %s: want 0 or more", c.KeepFiles)
	case c.KeepFor < 0:
		return refuse("--keep-for %s: want 0 or more", c.KeepFor)
	case c.Replicas < 0 || c.Replicas > 5:
		return refuse("--replicas %d: want 1 to 5, or 0 for as many as fit the NATS server", c.Replicas)
	case c.Replicas > 1 && c.NATS == "":
		return refuse("--replicas %d: the NATS server inside is alone; name a cluster with --nats URL,URL,URL", c.Replicas)
	}
	return nil
}

// CompleteDaemon fills in the defaults of a daemon and checks all its settings. It returns an *InputError for settings
// that are refused.
func (c *Config) CompleteDaemon() error {
	if err := c.checkAccess(); err != nil {
		return err
	}
	if err := inHome(&c.Store, "--store", "store"); err != nil {
		return err
	}
	c.Socket = cmp.Or(c.Socket, DefaultSocket())
	c.Temp = filepath.Join(c.Store, "temp")
	if err := c.checkJobs(); err != nil {
		return err
	}
	if err := cmp.Or(c.checkHTTP(), c.checkWebhooks(), c.checkTraces()); err != nil {
		return err
	}
	if _, err := c.Limits.Check(); err != nil {
		return err
	}
	if c.Workers < 1 || c.Workers > 64 {
		return refuse("--workers %d: want 1 to 64", c.Workers)
	}
	if err := c.CompleteModels(); err != nil {
		return err
	}
	if list, _ := GPUs(c.Devices); list != nil && c.Workers > 1 {
		return refuse("--workers %d --devices %s: one worker uses a GPU", c.Workers, c.Devices)
	}
	return CheckLevel()
}

// Complete fills in the defaults of folders and devices, makes paths absolute, and checks the flags. It returns an
// *InputError for settings that are refused.
func (c *Config) Complete() error {
	if len(c.Models) == 0 && c.ComfyUI == "" {
		c.Models = filepath.SplitList(os.Getenv("PATCHBAY_MODELS"))
		if len(c.Models) == 0 {
			c.Models = []string{""}
			if err := inHome(&c.Models[0], "--models", "models"); err != nil {
				return err
			}
		}
	}
	if c.ComfyUI != "" {
		if _, err := os.Stat(filepath.Join(c.ComfyUI, "models")); err != nil {
			return refuse("--comfyui %s: there is no models folder in it", c.ComfyUI)
		}
		if folder := filepath.Join(c.ComfyUI, "models"); !slices.Contains(c.Models, folder) { // a worker is given both
			c.Models = append(c.Models, folder)
		}
		var err error
		if c.Extra, err = files.ReadExtra(c.ComfyUI); err != nil {
			return refuse("--comfyui: %w", err)
		}
		c.Input = cmp.Or(c.Input, filepath.Join(c.ComfyUI, "input"))
		c.Output = cmp.Or(c.Output, filepath.Join(c.ComfyUI, "output"))
	}
	if err := cmp.Or(inHome(&c.Input, "--input", "input"), inHome(&c.Output, "--output", "output")); err != nil {
		return err
	}
	if err := c.CheckDevices(); err != nil {
		return err
	}
	if err := errors.Join(c.checkHosts(), c.checkSchedule()); err != nil {
		return &InputError{Err: err}
	}
	if _, err := value.ParseCompute(cmp.Or(c.Compute, string(value.ComputeAuto))); err != nil {
		return refuse("--compute %w", err)
	}
	n, err := ParseBytes(c.Memory)
	switch {
	case err != nil:
		return refuse("--memory %w", err)
	case n > 0 && n < leastMemory:
		return refuse("--memory %s: want %dM or more, which a worker needs to begin", c.Memory, leastMemory>>20)
	case c.FreeAfter < 0:
		return refuse("--free-after %s: want 0 or more", c.FreeAfter)
	}
	if err := checkAddresses(addressSpace(), n); err != nil {
		return &InputError{Err: err}
	}
	if _, err := zerolog.ParseLevel(c.Log); err != nil {
		return refuse("--log %s: want debug, info, warn or error", c.Log)
	}
	paths := []*string{
		&c.ComfyUI, &c.Input, &c.Output, &c.Temp, &c.Store, &c.ClusterKey, &c.Templates,
		&c.WebhookSecretFile,
	}
	for i := range c.Models {
		paths = append(paths, &c.Models[i])
	}
	for _, p := range paths {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return fmt.Errorf("folder %s: %w", *p, err)
		}
		*p = abs
	}
	return nil
}

// CompleteModels is Complete, and returns an *InputError for models folders that were named but do not exist. The
// default folder may be created later.
func (c *Config) CompleteModels() error {
	if err := c.Complete(); err != nil {
		return err
	}
	for _, m := range c.Models {
		info, err := os.Stat(m)
		switch {
		case err == nil && info.IsDir() || m == filepath.Join(Home(), "models"):
		case err == nil:
			return refuse("--models %s: it is no folder", m)
		default:
			return refuse("--models (or PATCHBAY_MODELS): %w", err)
		}
	}
	return nil
}

// CheckDevices returns an *InputError for --devices that do not exist or are too old, and for wrong values of the other
// device flags. It resolves auto in --devices and makes the paths of --rates and --pack-cache absolute.
func (c *Config) CheckDevices() error {
	c.Devices = c.resolvedDevices()
	_, _, driver, infos, err := c.ratedGPUs()
	if err == nil {
		_, err = c.nccl(driver, infos)
	}
	if err == nil {
		_, _, err = c.deviceMemory()
	}
	switch {
	case err != nil:
		return &InputError{Err: err}
	case !slices.Contains([]string{"", PlacementThreads, placementChildren}, c.Placement):
		return refuse("--placement %s: want threads or children", c.Placement)
	case !slices.Contains([]string{"", GraphsOn, graphsOff}, c.Graphs):
		return refuse("--graphs %s: want on or off", c.Graphs)
	case c.Patience != 0 && c.Patience < time.Second:
		return refuse("--patience %s: want 1s or more, longer than the longest operation", c.Patience)
	}
	for _, path := range []*string{&c.Rates, &c.PackCache} {
		if *path != "" {
			*path, _ = filepath.Abs(*path) // a worker may start elsewhere
		}
	}
	if info, err := os.Stat(c.PackCache); c.PackCache != "" && err == nil && !info.IsDir() {
		return refuse("--pack-cache %s: want a folder", c.PackCache)
	}
	return nil
}

// checkAccess returns an *InputError for flags of serve that exclude each other.
func (c *Config) checkAccess() error {
	if err := c.Access.Check(); err != nil {
		return &InputError{Err: err}
	}
	switch {
	case c.UsersFile != "" && c.TokenFile != "":
		return refuse("--users-file and --token-file exclude each other")
	case c.NATS != "" && c.UsersFile != "":
		return refuse("--users-file is for the server inside; the one of --nats has users of its own")
	}
	return nil
}
