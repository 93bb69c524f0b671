"""The turn protocol: lock record, transitions, ordering, fencing tokens. Pure, explored by the simulator."""
