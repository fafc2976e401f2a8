package meter

import (
	"encoding/json"

	"github.com/rs/zerolog"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// Log lines use the same keys everywhere: job, node, rank and step. The logger of a job already has the first.

// TraceEvent logs, at debug level, that a node begins or that a step is done.
func TraceEvent(log *zerolog.Logger, ev message.Event) {
	switch ev.Type {
	case message.EventExecuting:
		if ev.Node != "" {
			log.Debug().Str("node", ev.Node).Msg("node begins")
		}
	case message.EventProgress:
		if step, ok := wire.Integer(ev.Data["value"]); ok {
			log.Debug().Str("node", ev.Node).Int64("step", step.Int64()).Msg("step done")
		}
	}
}

// TraceRanks logs, at debug level, what every rank has sent in every sampling run.
func TraceRanks(log *zerolog.Logger, metrics map[string]any) {
	var m runMetrics
	if log.GetLevel() > zerolog.DebugLevel || Read(metrics, &m) != nil {
		return
	}
	for _, s := range m.Stats {
		for rank, sent := range s.Ranks {
			ev := log.Debug().Int("rank", rank).Str("plan", s.Plan)
			for _, axis := range axes() {
				var t struct{ Bytes int64 }
				if text, ok := sent[axis]; ok && json.Unmarshal(text, &t) == nil {
					ev = ev.Int64(axis+"_bytes", t.Bytes)
				}
			}
			ev.Msg("rank done")
		}
	}
}
