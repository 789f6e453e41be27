"""What schemathesis must not ask: streams answer for as long as the caller listens."""

import schemathesis


@schemathesis.hook
def filter_path_parameters(context, path_parameters):
    return not path_parameters or path_parameters.get("method") != "watch"
