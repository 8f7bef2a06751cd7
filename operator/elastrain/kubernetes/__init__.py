"""The Kubernetes side: what the cluster holds is read into `planning.Observed`, plans are carried out on it.

    credentials -> transport -> client      plain JSON to the API server, with retries and typed errors
    cache <- reflector                      what exists, kept by list and watch
    observe, manifests                      pure translation, in and out
    executor, events                        a plan becomes requests
    queue, reconciler                       which job is looked at when
    election                                which replica acts

Nothing here decides about a job (`planning`) or talks to agents (`coordination`); `operator` composes them.
"""
