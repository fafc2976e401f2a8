package daemon

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/rs/zerolog"

	"patchbay/parallel/remote"
)

// NewKeyFile writes a new cluster's secret to a file that only the user may read. It returns an *InputError if the file
// cannot be created, as when it exists.
func NewKeyFile(path string) error {
	secret := make([]byte, remote.SecretLength)
	_, _ = rand.Read(secret) // never fails
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return refuse("--new-key: %w", err)
	}
	_, err = fmt.Fprintln(f, hex.EncodeToString(secret))
	return errors.Join(err, f.Close())
}

// RunHost offers the devices of this machine to the workers that have the cluster's key until the context is done or a
// signal comes, and announces them in a cluster, if one is given. hung is called when a rank does not come back: only
// the end of the process helps then.
func RunHost(parent context.Context, cfg *Config, listen string, places int, member Membership, log zerolog.Logger,
	hung func(error),
) error {
	ctx, stop := signal.NotifyContext(parent, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	gpus, _ := GPUs(cfg.Devices) // checked before
	if places == 0 {
		places = max(1, len(gpus))
	}
	if places < 1 || places > 64 {
		return refuse("--ranks %d: want 1 to 64, or 0: one a GPU", places)
	}
	if cfg.Transport == transportNCCL && !cfg.TrustedNetwork {
		return refuse("--transport nccl: NCCL neither encrypts nor authenticates what machines exchange: add " +
			"--trusted-network where nobody else is on their network, or want --transport auto")
	}
	if member.Cluster != "" && cfg.NATS == "" {
		return refuse("--join %s: --nats is missing: the server of the daemon that leads", member.Cluster)
	}
	if _, err := remote.Address(member.Address, HostPort); member.Address != "" && err != nil {
		return refuse("--address %w", err)
	}
	key, err := readKey(cfg.ClusterKey)
	if err != nil {
		return &InputError{Err: err}
	}
	offer, release, err := cfg.offer(places, cfg.TrustedNetwork, log)
	if err != nil {
		return err
	}
	defer release()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return refuse("--listen: %w", err)
	}
	open := &opener{roots: cfg.Roots(), host: offer.Host, filesByKey: map[string]knownFiles{}}
	offer.Open = open.open
	s := remote.Listener{
		Network: remote.Network{Key: key, Build: cfg.Version, Silence: cfg.silence()},
		Offer:   offer, Hung: hung,
		Say: func(who net.Addr, what string, cause error) {
			log.Info().Stringer("from", who).AnErr("cause", cause).Msg(what)
		},
	}
	leave, err := member.join(ctx, cfg, l, places, log)
	if err != nil {
		return &InputError{Err: errors.Join(err, l.Close())}
	}
	defer leave()
	log.Info().Stringer("address", l.Addr()).Int("ranks", places).Str("version", cfg.Version).Msg("host ready")
	s.Serve(ctx, l)
	return nil
}
