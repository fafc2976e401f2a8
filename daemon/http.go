package daemon

import (
	"net/url"
	"os"
	"path/filepath"

	"patchbay/ipc/broker"
	"patchbay/ipc/meter"
	"patchbay/ipc/web"
)

// openHTTP opens the address of ComfyUI's HTTP API, if one is configured.
func (d *daemon) openHTTP() error {
	cfg := d.cfg
	if cfg.HTTP == "" {
		return nil
	}
	token, err := readToken("--http-token-file", cfg.HTTPTokenFile)
	if err != nil {
		return err
	}
	body, err := ParseBytes(cfg.Limits.Message)
	if err != nil {
		return err
	}
	var logins func(name, password string) *broker.Login
	if cfg.UsersFile != "" {
		if logins = d.embedded.Logins(); logins == nil && token == "" {
			return refuse("--users-file %s: no user in it has a password, so nobody could use --http: give "+
				"--http-token-file", cfg.UsersFile)
		}
	}
	d.http, err = web.Listen(web.Config{
		Listen: cfg.HTTP, Token: token, Logins: logins, Origins: cfg.HTTPOrigins, Roots: cfg.Roots(), Stats: d.meter.Stats,
		Memory: func() (int64, int64) { return memInfo("MemTotal:"), availableMemory() }, Body: body, Log: d.log,
		Cert: cfg.HTTPCert, Key: cfg.HTTPKey, Keep: filepath.Join(cfg.Store, "history"),
		Metrics: d.meter.ServeHTTP, Health: meter.Health(d.faults), Frontend: cfg.Frontend, Templates: cfg.Templates,
		FrontendTemplates: templatesBeside(cfg.Frontend), Users: filepath.Join(cfg.Store, "users"),
	})
	return err
}

// checkHTTP returns an *InputError for flags of the HTTP API that cannot work.
func (c *Config) checkHTTP() error {
	switch {
	case c.HTTP == "" && c.Templates != "":
		return refuse("--templates is for --http ADDRESS")
	case c.HTTP == "" && (c.HTTPTokenFile != "" || len(c.HTTPOrigins) > 0 || c.HTTPCert != "" || c.Frontend != ""):
		return refuse("--http-token-file, --http-origin, --http-cert and --frontend are for --http ADDRESS")
	case (c.HTTPCert == "") != (c.HTTPKey == ""):
		return refuse("--http-cert and --http-key go together")
	}
	if info, err := os.Stat(c.Templates); c.Templates != "" && (err != nil || !info.IsDir()) {
		return refuse("--templates %s: want a folder of workflows with parameters, NAME.json", c.Templates)
	}
	if err := c.findFrontend(); err != nil {
		return err
	}
	for _, o := range c.HTTPOrigins {
		u, err := url.Parse(o)
		if err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
			return refuse("--http-origin %s: want SCHEME://HOST[:PORT]", o)
		}
	}
	return nil
}
