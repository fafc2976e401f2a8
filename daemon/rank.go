package daemon

import (
	"context"
	"net"
	"os"

	"github.com/rs/zerolog"

	ncclib "patchbay/engine/cuda/nccl"
	"patchbay/models/source"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/nccl"
	"patchbay/parallel/process"
	"patchbay/parallel/remote"
)

// RunRank runs ranks for the leader at file descriptor 3 until the leader goes. It listens at a path for the processes
// of other ranks.
func RunRank(ctx context.Context, cfg *Config, listen string, log zerolog.Logger) error {
	file := os.NewFile(controlFD, "leader")
	conn, err := net.FileConn(file)
	if err != nil {
		return refuse("rank: there is no leader at file descriptor %d: a worker starts this command", controlFD)
	}
	_ = file.Close()
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", listen)
	if err != nil {
		return err
	}
	offer, release, err := cfg.offer(1, true, log)
	if err != nil {
		return err
	}
	defer release()
	var loader source.Loader
	offer.Listen = l
	offer.Open = func(_ string, model []byte) (process.Weights, error) { return loader.Decode(model) }
	return remote.Serve(conn, offer)
}

// offer opens what a process offers to a leader, except listener and model files, which the caller adds. trusted allows
// NCCL. The returned function releases it.
func (c *Config) offer(places int, trusted bool, log zerolog.Logger) (remote.Config, func(), error) {
	cfg := *c
	cfg.Placement = PlacementThreads
	cfg.Transport = transportLocal // within this process
	cfg.Loaded = logLoaded(log)
	ec, back, err := cfg.BoundEngine(log)
	if err != nil {
		return remote.Config{}, nil, err
	}
	release := func() {
		if err := back(); err != nil {
			log.Warn().Err(err).Msg("the device was not released completely")
		}
	}
	offer := remote.Config{Within: ec.Transport}
	offer.Host, err = process.New(process.Config{
		NewOps: ec.NewOps, DeviceOf: ec.DeviceOf, MemoryBytes: ec.MemoryBytes, Room: ec.Resident(),
		DeviceMemory: ec.DeviceMemory, Reserve: ec.Reserve, Copies: ec.Copies, Places: places,
	})
	if err != nil {
		release()
		return remote.Config{}, nil, err
	}
	closing := func() { offer.Host.Close(); release() }
	offer.Site, err = c.site(places, offer.Host.Ops())
	var lib *ncclib.Library
	if err == nil && trusted {
		lib, err = c.between()
	}
	if err != nil {
		closing()
		return remote.Config{}, nil, err
	}
	if lib != nil {
		offer.NCCL = lib.Version
		offer.Over = func(mesh comm.Transport) (comm.Transport, func() error) {
			t := nccl.NewBetween(lib, mesh)
			return t, t.Close
		}
	}
	return offer, closing, nil
}
