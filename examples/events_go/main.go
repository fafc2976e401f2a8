// Command events_go prints one line for every job that ends, also for those that ended while it was not running: a
// durable consumer on the stream of events.
//
//	go run ./examples/events_go [--nats URL] [--name accountant] [--count N]
//
// Two of them with one name share the work; with other names each gets every job. An end that is printed and not
// acknowledged, because the program died in between, comes again: what is done with it must bear that.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// end is what a terminal event says of its job.
type end struct {
	Job   string
	Type  string
	Error struct{ Code, Message string }
	Data  struct {
		Outputs []struct{ Filename, Subfolder string }
	}
}

func main() {
	url := flag.String("nats", nats.DefaultURL, "NATS server of the daemon")
	name := flag.String("name", "accountant", "name of the consumer, which the server remembers")
	count := flag.Int("count", 0, "stop after so many jobs; 0: never")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := follow(ctx, *url, *name, *count); err != nil {
		fmt.Fprintln(os.Stderr, "events_go:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to clean up
	}
}

func follow(ctx context.Context, url, name string, count int) error {
	nc, err := nats.Connect(url, nats.Name("example consumer"), nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	var subjects []string
	for _, kind := range []string{"execution_success", "execution_error", "execution_interrupted", "expired"} {
		subjects = append(subjects, "patchbay.v1.events.*."+kind)
	}
	c, err := js.CreateOrUpdateConsumer(ctx, "PATCHBAY_EVENTS_1", jetstream.ConsumerConfig{
		Durable: name, FilterSubjects: subjects, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second,
	})
	if err != nil {
		return fmt.Errorf("stream of events (does a daemon run with --queue durable?): %w", err)
	}
	for seen := 0; count == 0 || seen < count; {
		m, err := c.Next(jetstream.FetchContext(ctx))
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			continue // nothing for a while, or the server is away
		}
		var e end
		if err := json.Unmarshal(m.Data(), &e); err != nil {
			return fmt.Errorf("event on %s: %w", m.Subject(), err)
		}
		line := e.Job + "\t" + e.Type
		for _, o := range e.Data.Outputs {
			line += "\t" + o.Filename
		}
		if e.Error.Code != "" {
			line += "\t" + e.Error.Code + ": " + e.Error.Message
		}
		fmt.Println(line)
		if err := m.DoubleAck(ctx); err != nil {
			return err
		}
		seen++
	}
	return nil
}
