"""An op of a workspace that depends on ascend_ops: out = gate * sigmoid(gate) * up."""
