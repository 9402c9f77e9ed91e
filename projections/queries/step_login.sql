select name, password from step_login
