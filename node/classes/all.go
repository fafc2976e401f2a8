package classes

import "patchbay/node/graph"

// All builds the table of all classes. Those in extra are added (tests); a name that is there already panics.
func All(extra ...graph.Class) *graph.Catalogue {
	return graph.NewCatalogue(
		loadClasses(), ggufClasses(), textClasses(), conditioningClasses(), editTextClasses(), latentClasses(),
		vaeClasses(), sampleClasses(), customClasses(), modelClasses(), imageClasses(), sigmaClasses(), schedulerClasses(),
		samplerClasses(), transformLatentClasses(), resizeImageClasses(), imageOpClasses(), maskClasses(),
		styleClasses(), controlNetClasses(), modelPatchClasses(), logicClasses(), expressionClasses(),
		generateClasses(), extra,
	)
}
