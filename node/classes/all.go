package classes

import "patchbay/node/graph"

// All returns the catalogue of all classes. extra adds more, for tests; a name that occurs twice panics.
func All(extra ...graph.Class) *graph.Catalogue {
	return graph.NewCatalogue(
		loadClasses(), ggufClasses(), textClasses(), conditioningClasses(), editTextClasses(),
		latentClasses(), vaeClasses(), sampleClasses(), customClasses(), modelClasses(), imageClasses(), sigmaClasses(),
		schedulerClasses(), samplerClasses(), transformLatentClasses(), resizeImageClasses(), imageOpClasses(),
		imageFilterClasses(), maskClasses(), styleClasses(), controlNetClasses(), modelPatchClasses(), logicClasses(),
		stringClasses(), expressionClasses(), generateClasses(), referenceClasses(), boxClasses(),
		wanClasses(), vaeAudioClasses(), h3Classes(), ltxClasses(), videoClasses(), audioClasses(),
		ltxSoundClasses(), cameraClasses(), extra,
	)
}
