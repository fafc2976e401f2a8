package broker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/conf"
)

// elsewhere says what to do instead of a setting in a file of users that decides who may connect, and that the server
// inside does not read. The names are those of nats-server's configuration in lower case.
var elsewhere = map[string]string{
	"tls": "give --tls-cert, --tls-key and --tls-ca", "authorization.token": "give --token-file",
	"authorization.user": "list it among users", "authorization.username": "list it among users",
	"authorization.password": "list it among users", "authorization.pass": "list it among users",
}

// unread returns an error if the file of users holds settings that decide who may connect and that are not read, and
// logs the names of the other settings that are not read.
func (cfg *EmbeddedConfig) unread() error {
	all, err := conf.ParseFile(cfg.Users)
	if err != nil {
		return err
	}
	var others []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch key := strings.ToLower(name); key {
		case "authorization":
			for _, inner := range slices.Sorted(maps.Keys(toMap(all[name]))) {
				switch key := "authorization." + strings.ToLower(inner); key {
				case "authorization.users", "authorization.timeout", "authorization.permissions",
					"authorization.default_permission", "authorization.default_permissions":
				default:
					return notRead(key)
				}
			}
		case "accounts", "allow_non_tls", "cluster", "default_sentinel", "gateway", "leaf", "leafnodes", "mappings", "maps",
			"mqtt", "no_auth_user", "ocsp", "operator", "operators", "proxies", "resolver", "account_resolver",
			"accounts_resolver", "root", "root_operator", "root_operators", "roots", "system", "system_account", "tls",
			"trusted", "trusted_keys", "websocket", "ws":
			return notRead(key)
		default:
			others = append(others, name)
		}
	}
	if len(others) > 0 {
		cfg.Log.Info().Strs("settings", others).Msg("the file of users is read for its authorization block alone")
	}
	return nil
}

func notRead(key string) error {
	return fmt.Errorf("the server inside does not read %s: %s", key, cmp.Or(elsewhere[key],
		"run nats-server with this file and serve with --nats"))
}

func toMap(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}
