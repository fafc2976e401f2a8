package broker

import "github.com/nats-io/nats-server/v2/server"

// LoginOf returns the logins of users without a server.
func LoginOf(users ...*server.User) func(name, password string) *Login { return newLogins(users).login }
