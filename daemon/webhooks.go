package daemon

import (
	"net/url"
	"os"

	"patchbay/ipc/webhook"
)

// openWebhooks makes what reports the ends of jobs, if there is a secret to sign with.
func (d *daemon) openWebhooks() error {
	if d.cfg.WebhookSecretFile == "" {
		return nil
	}
	text, err := os.ReadFile(d.cfg.WebhookSecretFile)
	if err != nil {
		return refuse("--webhook-secret-file: %w", err)
	}
	secret, err := webhook.ParseSecret(string(text))
	if err != nil {
		return refuse("--webhook-secret-file %s: %w", d.cfg.WebhookSecretFile, err)
	}
	d.webhooks = webhook.New(webhook.Config{Secret: secret, Hosts: d.cfg.WebhookHosts, Log: d.log})
	return nil
}

// checkWebhooks returns an *InputError for hosts that cannot be meant.
func (c *Config) checkWebhooks() error {
	if len(c.WebhookHosts) > 0 && c.WebhookSecretFile == "" {
		return refuse("--webhook-host needs --webhook-secret-file")
	}
	for _, host := range c.WebhookHosts {
		if u, err := url.Parse("//" + host); err != nil || u.Host != host || u.Hostname() == "" {
			return refuse("--webhook-host %s: want HOST or HOST:PORT", host)
		}
	}
	return nil
}
