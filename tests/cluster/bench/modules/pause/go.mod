module elastrain.dev/bench/pause

go 1.24
