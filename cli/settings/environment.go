package settings

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"
)

// variableOf is the annotation of a flag that names the environment variable with its default.
const variableOf = "patchbay_environment"

// modelsVariable names folders of models, separated as in PATH.
const modelsVariable = "PATCHBAY_MODELS"

func annotate(f *pflag.Flag, variable string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[variableOf] = []string{variable}
	f.Usage += " ($" + variable + ")"
}

// environment gives a flag the value of an environment variable, if that is set and the command line does not say
// otherwise. The error is for numbers that are none.
func environment(f *pflag.FlagSet, flag, variable string) error {
	one := f.Lookup(flag)
	annotate(one, variable)
	text := os.Getenv(variable)
	if text == "" {
		return nil
	}
	if err := one.Value.Set(text); err != nil {
		return fmt.Errorf("%s: %q is no number", variable, text)
	}
	return nil
}

// Variable returns the environment variable that a flag has its value from; "": from none.
func Variable(f *pflag.Flag) string {
	if name := f.Annotations[variableOf]; len(name) > 0 && !f.Changed && os.Getenv(name[0]) != "" {
		return name[0]
	}
	return ""
}
