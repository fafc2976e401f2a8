package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"patchbay/ipc/broker"
	"patchbay/ipc/wire"
)

// defaultUsers are those of examples/nats-server.conf.
const defaultUsers = "daemon=daemon,admin=admin,client=alice,client=bob"

// addAccess adds the flags that say who a connection to a NATS server is and whom it trusts.
func addAccess(f *pflag.FlagSet, a *wire.Access) {
	f.StringVar(&a.Creds, "creds", os.Getenv("PATCHBAY_NATS_CREDS"), "NATS credentials file (JWT and seed of a user)")
	f.StringVar(&a.NKey, "nkey", os.Getenv("PATCHBAY_NATS_NKEY"), "file with the seed of a NATS NKey")
	f.StringVar(&a.CA, "tls-ca", os.Getenv("PATCHBAY_NATS_CA"), "PEM file of the authorities to trust in NATS connections")
	f.StringVar(&a.Cert, "tls-cert", os.Getenv("PATCHBAY_NATS_CERT"), "PEM file of the certificate to show in NATS connections")
	f.StringVar(&a.Key, "tls-key", os.Getenv("PATCHBAY_NATS_KEY"), "PEM file of its private key")
	f.StringVar(&a.Inbox, "inbox-prefix", os.Getenv("PATCHBAY_NATS_INBOX"), "subject below which NATS replies come (default _INBOX.<user>)")
}

// checkAccess refuses flags of serve that do not go together.
func (c *config) checkAccess() error {
	bad := func(format string, args ...any) error { return &exitError{exitBadInput, fmt.Errorf(format, args...)} }
	if err := c.access.Check(); err != nil {
		return bad("%w", err)
	}
	switch {
	case c.UsersFile != "" && c.TokenFile != "":
		return bad("--users-file and --token-file exclude each other")
	case c.NATS != "" && c.UsersFile != "":
		return bad("--users-file is for the server inside; the one of --nats has users of its own")
	}
	return nil
}

// printPermissions prints the rights of users as nats-server reads them.
func printPermissions(cmd *cobra.Command, text string) error {
	users, err := broker.ParseUsers(text)
	if err != nil {
		return &exitError{exitBadInput, fmt.Errorf("--print-permissions: %w", err)}
	}
	printf(cmd.OutOrStdout(), "%s", broker.ServerConfig(users))
	return nil
}
